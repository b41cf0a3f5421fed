# docker build -t octavo .     docker run -p 8080:80 -v $PWD/data:/data octavo --model-id smollm2
# docker build -t octavo:cuda --target cuda .     docker run --gpus all --shm-size 1g ... octavo:cuda --model-id M
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

FROM python:3.11-slim-bookworm AS cpu
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

# torch's wheels bring CUDA's libraries, so it has some gigabytes; the driver is the host's. They are pinned by
# version, not by hash: which files an index has of them differs.
FROM cpu AS cuda
USER 0:0
# Triton has a small launcher compiled for each kernel.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints/cuda.txt /opt/octavo/
RUN /opt/octavo/bin/pip install --no-cache-dir -r /opt/octavo/cuda.txt
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility TRITON_CACHE_DIR=/data/triton
USER 10001:10001

# Without --target it is the one for CPUs.
FROM cpu
