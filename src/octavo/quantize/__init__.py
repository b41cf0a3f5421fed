"""Making quantized checkpoints: a folder or a GGUF file in, a folder or a GGUF file out.

    job.py          what a user asks, and gets
    making.py       which matrices become what
    stored.py       a model whose matrices stay in their file until they are met, and know their names
    calibration.py  a text as token ids, and one forward over them
    folds.py        which norm or projection comes before which matrices, for AWQ
    folder.py       safetensors, a file a layer; begun anew where it was interrupted
    gguf_file.py    GGUF; metadata.py: what its header says of a folder; vocabulary.py: of its tokenizer;
                    types.py: which type each matrix gets

How numbers are stored is not known here: quant/writers/ and quant/formats/ have one file a method or format.
"""
