# docker build -t octavo .     docker run -p 8080:80 -v $PWD/data:/data octavo --model-id smollm2
# What is installed is locked by hash (constraints/runtime.txt, wheel.txt); what builds the extension stays behind.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints/runtime.txt constraints/wheel.txt constraints/
RUN python -m venv /opt/octavo \
    && /opt/octavo/bin/pip install --no-cache-dir --require-hashes -r constraints/runtime.txt \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r constraints/wheel.txt
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY csrc csrc
COPY src src
# A build without a compiler would be slow and silent about it: the extension must be there.
RUN PATH="/opt/build/bin:$PATH" /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/octavo/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/octavo/bin/python -c "import octavo.kernels._native"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/octavo /opt/octavo
RUN useradd --uid 10001 --user-group --home-dir /data --create-home octavo
ENV PATH=/opt/octavo/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/data HF_HOME=/data/huggingface
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 80
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=30m \
    CMD ["python", "-m", "octavo.entrypoints.container", "--healthy"]
# Flags alone are those of `octavo serve`, as at TGI's image; port 80, or $PORT, or --port.
ENTRYPOINT ["python", "-m", "octavo.entrypoints.container"]
CMD ["--model-id", "smollm2"]
