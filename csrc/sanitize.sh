#!/bin/sh
# Build the extension under sanitizers, apart from the one in use, and run the kernels' tests on it.
#   csrc/sanitize.sh PYTHON [address|thread]...      (default: both)
# PYTHON runs the tests. BUILD_PYTHON, if set, is the one that has nanobind; cmake and ninja come from the PATH.
# JUNIT_FOLDER, if set, is where each kind's results are written (benchmarks/record.py sets it).
# address: AddressSanitizer and UndefinedBehaviorSanitizer. thread: ThreadSanitizer.
set -eu
python=$1
shift
builder=${BUILD_PYTHON:-$python}
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- address thread
for kind in "$@"; do
    build=$root/build/sanitize-$kind
    # Tests import what lies beside them, so they come along.
    rm -rf "$build/src" "$build/tests" "$build/csrc"
    mkdir -p "$build/src"
    cp -R "$root/src/octavo" "$build/src/"
    cp -R "$root/tests" "$root/csrc" "$root/pyproject.toml" "$build/"
    rm -f "$build"/src/octavo/kernels/_native*.so
    sanitizers=$kind
    [ "$kind" = thread ] || sanitizers=address,undefined
    cmake -S "$root" -B "$build/cmake" -G Ninja -DPython_EXECUTABLE="$builder" \
        -DOCTAVO_SANITIZE=$sanitizers -DOCTAVO_OUTPUT="$build/src/octavo/kernels" >/dev/null
    cmake --build "$build/cmake"
    library() { gcc -print-file-name="$1"; }
    if [ "$kind" = thread ]; then
        # Without randomized addresses, which some kernels spread wider than the runtime can map.
        set_up="setarch -R env TSAN_OPTIONS=halt_on_error=1,exitcode=66 LD_PRELOAD=$(library libtsan.so)"
        tests="tests/kernels/test_cpu_program.py tests/kernels/test_cpu_linear.py tests/kernels/test_cpu_ops.py
            tests/kernels/test_cpu_decoder.py tests/kernels/test_cpu_ahead.py tests/kernels/test_cpu_head.py
            tests/kernels/test_cpu_attention.py tests/kernels/test_cpu_trees.py
            tests/sampling/test_native.py"
    else
        # The interpreter itself leaks; the C++ library must be there before exceptions are intercepted.
        set_up="env ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$(library libasan.so):$(library libstdc++.so.6)"
        tests="tests/kernels tests/sampling/test_native.py tests/spec/test_native_policy.py tests/spec/test_text_index.py"
    fi
    # One thread for NumPy's BLAS, whose own is not built for this; what a sanitizer prints is not captured.
    (cd "$build" && export OPENBLAS_NUM_THREADS=1 && $set_up "$python" -m pytest -p no:xdist -p no:cacheprovider -q --capture=sys \
        --ignore tests/kernels/cuda \
        ${JUNIT_FOLDER:+--junitxml="$JUNIT_FOLDER/$kind.xml"} \
        --deselect tests/kernels/test_reference.py --deselect tests/kernels/test_cpu_spills.py $tests)
done
