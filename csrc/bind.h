// What the parts of the Python module share: arrays as they arrive, and structs whose fields Python names.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "call.h"

namespace octavo {

namespace nb = nanobind;
using namespace nb::literals;

using Floats = nb::ndarray<const float, nb::numpy, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T, int N> using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using Result = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void refuse_array(const char* name) {
    throw std::invalid_argument(std::string(name) + " is no array of the right type, shape and order");
}
// The array itself, never a copy of another type: what is written to a copy is lost, and a copy dies with this call.
// Throws std::invalid_argument, with its name.
template <class T> T exactly(nb::handle array, const char* name) {
    T found;
    if (!nb::try_cast(array, found, false)) refuse_array(name);
    return found;
}
template <class T> T named(nb::handle from, const char* name) { return exactly<T>(from.attr(name), name); }
// Of an array that is only read, and held by what this returns: a copy in C order where it lies in another.
template <class T, int N> Array<T, N> in_order(nb::handle from, const char* name) {
    const nb::object array = from.attr(name);
    Array<T, N> found;
    if (nb::try_cast(array, found, false)) return found;
    nb::ndarray<const T, nb::ndim<N>, nb::device::cpu> strided;
    if (!nb::try_cast(array, strided, false) || !nb::try_cast(array, found)) refuse_array(name);
    return found;
}

void bind_program(nb::module_& m);  // Program
void bind_sampling(nb::module_& m); // Sampler, Decoder
void bind_spec(nb::module_& m);     // NativeTextIndex, NativePolicy

} // namespace octavo
