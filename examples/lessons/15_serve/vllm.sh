# Lecture 10, 5, lines 110-112: `pip install vllm; sh vllm.sh; python inference.py`.
#
# What differs: vLLM's module has another name, and its flags are the same. Octavo is installed from a checkout.
exec python -m octavo.entrypoints.openai.api_server --model "${MODEL:-smollm2}" --port "${PORT:-8000}" \
    --tensor-parallel-size 1 --gpu-memory-utilization 0.9 --enable-chunked-prefill
