# Lecture 10, 5, lines 118-120: `docker install; sh tgi.sh; python inference.py`.
#
# What differs: this starts the server itself. In a container: docker run -p 8080:80 -v $PWD/data:/data octavo,
# and from --model-id on the same flags. --num-shard above 1 is refused by name.
exec python -m octavo serve --model-id "${MODEL:-smollm2}" --port "${PORT:-8000}" --num-shard 1 \
    --max-input-tokens 1024 --max-total-tokens 2048
