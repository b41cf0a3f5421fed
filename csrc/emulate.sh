#!/bin/sh
# Run the kernels' tests on CPUs that this machine does not have, under qemu's user emulation.
#   csrc/emulate.sh PYTHON [x86|arm64]...      (default: both)
# PYTHON runs the tests natively; its extension, built in place, is what x86 tests. BUILD_PYTHON, if set, is the
# one that has nanobind; cmake and ninja come from the PATH.
# x86: a CPU without AVX (Nehalem), where the generic kernels must neither trap nor differ from the reference.
# arm64: the extension is cross-built; neon and generic kernels on a CPU with dot products, and generic ones alone
# on one without (Cortex-A53), where neon must not be chosen.
# More arguments for pytest: PYTEST_ARGS.
set -eu
python=$1
shift
builder=${BUILD_PYTHON:-$python}
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/emulate
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
suite="tests/kernels/test_cpu_linear.py tests/kernels/test_cpu_steps.py tests/kernels/test_cpu_ops.py
    tests/kernels/test_cpu_program.py
    tests/kernels/test_cpu_attention.py tests/kernels/test_cpu_decoder.py tests/kernels/test_cpu_head.py tests/kernels/test_cpu_choice.py
    tests/sampling/test_native.py"

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 && return
    echo "emulated tests need $1: install it (Debian and Ubuntu: apt-get install $2)" >&2
    exit 1
}
# What runs there: "generic", "neon generic", ...
expect() { # WANTED COMMAND...
    wanted=$1
    shift
    found=$("$@" -c 'from octavo.kernels import _native; print(*_native.isas())')
    if [ "$found" != "$wanted" ]; then
        echo "instruction sets: $found; expected: $wanted" >&2
        exit 1
    fi
    echo "instruction sets: $found"
}

x86() {
    [ "$(uname -m)" = x86_64 ] || { echo "x86 is emulated on x86-64 only: the extension is the native one" >&2; exit 1; }
    need qemu-x86_64 qemu-user
    # NumPy's OpenBLAS is told which CPU it is on: left to find out, it once trapped there while NumPy was imported.
    export PYTHONPATH="$root/tests/support/checkout:$root/src" OPENBLAS_CORETYPE=Nehalem
    echo "Nehalem (no AVX), under $(qemu-x86_64 --version | head -1)"
    expect generic qemu-x86_64 -cpu Nehalem "$python"
    (cd "$root" && qemu-x86_64 -cpu Nehalem "$python" -m pytest -p no:xdist -p no:cacheprovider ${PYTEST_ARGS:-} $suite)
}

# An interpreter and its libraries for arm64, from Debian's packages, unpacked and not installed.
arm64_python() { # FOLDER VERSION
    [ -x "$1/usr/bin/python$2" ] && return
    need dpkg-deb dpkg
    rm -rf "$1" "$1.debs"
    mkdir -p "$1" "$1.debs"
    packages="python$2-minimal:arm64 libpython$2-minimal:arm64 libpython$2-stdlib:arm64"
    for name in libc6 libstdc++6 libgcc-s1 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libssl3 libuuid1 libcrypt1; do
        packages="$packages $name:arm64"
    done
    if ! (cd "$1.debs" && apt-get download -q $packages >download.log 2>&1); then
        echo "Python $2 for arm64 could not be downloaded: Debian's packages are needed, after" >&2
        echo "    dpkg --add-architecture arm64 && apt-get update" >&2
        tail -3 "$1.debs/download.log" >&2
        exit 1
    fi
    for package in "$1.debs"/*.deb; do dpkg-deb -x "$package" "$1"; done
}

arm64() {
    need qemu-aarch64 qemu-user
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
    version=$("$builder" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    arm64_python "$build/arm64-root" "$version"
    if [ ! -d "$build/arm64-site/pytest" ]; then
        "$python" -m pip --disable-pip-version-check install --quiet --target "$build/arm64-site" \
            -c "$root/constraints/test.txt" --only-binary=:all: --python-version "$version" --implementation cp \
            --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
            numpy ml_dtypes pytest pytest-timeout hypothesis
    fi
    # Tests import what lies beside them, so they come along.
    rm -rf "$build/src" "$build/tests"
    mkdir -p "$build/src"
    cp -R "$root/src/octavo" "$build/src/"
    cp -R "$root/tests" "$root/pyproject.toml" "$build/"
    rm -f "$build"/src/octavo/kernels/_native*.so
    cmake -S "$root" -B "$build/cmake" -G Ninja -DPython_EXECUTABLE="$builder" -DOCTAVO_OUTPUT="$build/extension" \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
    cmake --build "$build/cmake"
    # Its suffix is that of the Python that built it; without one, any imports it.
    cp "$build"/extension/_native*.so "$build/src/octavo/kernels/_native.so"
    export PYTHONPATH="$build/src:$build/arm64-site" PYTHONHOME="$build/arm64-root/usr"
    for cpu in max cortex-a53; do
        echo "arm64, -cpu $cpu, under $(qemu-aarch64 --version | head -1)"
        run="qemu-aarch64 -cpu $cpu -L $build/arm64-root $build/arm64-root/usr/bin/python$version"
        if [ "$cpu" = max ]; then
            expect "neon generic" $run
            (cd "$build" && $run -m pytest -p no:cacheprovider ${PYTEST_ARGS:-} $suite)
        else
            expect generic $run
        fi
    done
}

[ $# -gt 0 ] || set -- x86 arm64
for kind in "$@"; do
    case $kind in
        x86) (x86) ;;
        arm64) (arm64) ;;
        *) echo "emulate.sh PYTHON [x86|arm64]...: there is no $kind" >&2; exit 1 ;;
    esac
done
