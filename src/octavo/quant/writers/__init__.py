"""Methods that write quantized checkpoints: one file for each, with its WRITER (quant/writer.py)."""
