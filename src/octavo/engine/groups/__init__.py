"""Page groups: one file each, found by engine/page_group.py (groups_of) and listed nowhere."""
