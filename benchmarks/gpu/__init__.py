"""What `make gpu-check` does on a machine with a GPU: see __main__.py."""

from gpu.bare import stand_in

stand_in()
