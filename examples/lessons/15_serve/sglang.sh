# Lecture 10, 5, lines 126-129: `pip install sglang[all]; sh sglang.sh; python inference.py`.
#
# What differs: `python -m sglang.launch_server` is `python -m octavo serve`, with the same flags. There is no
# flashinfer to install: kernels are the engine's own.
exec python -m octavo serve --model-path "${MODEL:-smollm2}" --port "${PORT:-8000}" --tp 1 \
    --mem-fraction-static 0.8 --context-length 2048
