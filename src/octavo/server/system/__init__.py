"""What every server says about itself: health, metrics, version."""
