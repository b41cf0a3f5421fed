// The Python module octavo.kernels._native.
#include "bind.h"

#include "calibrate.h"
#include "cpu.h"
#include "top_k.h"

namespace octavo {
namespace {

// address, row stride, column stride, is f32
using TableTuple = std::tuple<uint64_t, int64_t, int64_t, bool>;
// address, rows, row stride, block stride, scales, minima
using SourceTuple = std::tuple<uint64_t, int64_t, int64_t, int64_t, TableTuple, TableTuple>;

const uint8_t* address(uint64_t a) { return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(a)); }
Table table_of(const TableTuple& t) { return {address(std::get<0>(t)), std::get<1>(t), std::get<2>(t), std::get<3>(t)}; }

Weights pack_sources(Pool& pool, WeightArena& arena, int layout, const std::vector<SourceTuple>& tuples, int64_t k,
                     bool gated, bool wide, bool minima, const nb::callable& after_slice) {
    std::vector<Source> sources;
    for (const auto& [values, rows, row_stride, block_stride, scales, mins] : tuples)
        sources.push_back({address(values), rows, row_stride, block_stride, table_of(scales), table_of(mins)});
    nb::gil_scoped_release release;
    return pack(pool, arena, static_cast<Layout>(layout), sources, k, gated, wide, minima, [&after_slice] {
        nb::gil_scoped_acquire acquire;
        after_slice();
    });
}

// Each row's k largest, as top_k.h has them: [rows, n] -> [rows][k].
std::vector<std::vector<int32_t>> top_k_rows(const Array<float, 2>& x, int64_t k) {
    const auto rows = static_cast<int64_t>(x.shape(0)), n = static_cast<int64_t>(x.shape(1));
    if (k < 1 || k > n) throw std::invalid_argument("k must lie in 1..n");
    std::vector<Entry> room(static_cast<size_t>(n));
    std::vector<std::vector<int32_t>> picks(static_cast<size_t>(rows), std::vector<int32_t>(static_cast<size_t>(k)));
    for (int64_t t = 0; t < rows; t++) top_k(x.data() + t * n, n, k, room.data(), picks[static_cast<size_t>(t)].data());
    return picks;
}

} // namespace
} // namespace octavo

NB_MODULE(_native, m) {
    using namespace octavo;
    m.doc() = "Octavo's CPU kernels: packed weights, KV pages, and programs of ops.";
    nb::set_leak_warnings(false); // objects that live until the interpreter ends are no leak

    m.def("isas", [] {
        std::vector<std::string> names;
        for (const Kernels* k : supported_kernels()) names.emplace_back(k->name);
        return names;
    }, "Instruction sets that this CPU runs, best first.");
    m.def("choose_isa", [](const std::string& isa) { return std::string(choose_kernels(isa)->name); }, "isa"_a);
    m.def("clock_rate", &clock_rate, nb::call_guard<nb::gil_scoped_release>());
    m.def("read_bandwidth", &read_bandwidth, nb::call_guard<nb::gil_scoped_release>());
    m.def("pack", &pack_sources);
    m.def("activation_bytes", [](const PackedMatrix& w, int64_t rows) { return activation_bytes(w.view.layout, rows, w.view.k); });
    m.def("moe_workspace", [](const std::vector<Weights>& gate_up, const std::vector<Weights>& down, int64_t top_k,
                              int64_t tokens) { return moe_workspace(moe_spec(gate_up, down, top_k), tokens); });
    m.def("top_k", &top_k_rows, "Indices of each row's k largest, ascending; ties as torch.topk's on a CPU.", "x"_a, "k"_a);
    m.def("head_linear_workspace", &head_linear_workspace);

    nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def_prop_ro("size", &Pool::size);
    nb::class_<WeightArena>(m, "WeightArena")
        .def("__init__", [](WeightArena* self, const std::string& isa, bool planned) {
            new (self) WeightArena(planned, choose_kernels(isa)->integer_scales);
        }, "isa"_a, "planned"_a = false);
    nb::class_<PackedMatrix>(m, "Matrix")
        .def_prop_ro("shape", [](const PackedMatrix& p) { return std::pair(p.view.n, p.view.k); })
        .def_prop_ro("gated", [](const PackedMatrix& p) { return p.view.gated; })
        .def_prop_ro("quantized", [](const PackedMatrix& p) {
            return is_quantized(p.view.layout);
        })
        .def_ro("nbytes", &PackedMatrix::nbytes);
    nb::class_<KVCache>(m, "KVCache")
        .def("__init__", [](KVCache* self, const std::vector<std::tuple<int64_t, int64_t, int64_t, int, bool>>& layers,
                            int64_t num_pages, int64_t page_size, bool local) {
            std::vector<KVShape> shapes;
            for (const auto& [heads, d, dv, type, latent] : layers)
                shapes.push_back({heads, d, dv, static_cast<KVType>(type), latent});
            new (self) KVCache(shapes, num_pages, page_size, local);
        }, "layers"_a, "num_pages"_a, "page_size"_a, "local"_a = false)
        .def_prop_ro("nbytes", &KVCache::nbytes)
        .def("copy_pages", &KVCache::copy_pages, nb::call_guard<nb::gil_scoped_release>())
        .def("pages", [](nb::handle_t<KVCache> self) {
            const KVCache& cache = nb::cast<const KVCache&>(self);
            const size_t shape[2] = {static_cast<size_t>(cache.num_pages()), static_cast<size_t>(cache.page_bytes())};
            return nb::ndarray<nb::numpy, uint8_t>(cache.data(), 2, shape, self);
        });

    bind_program(m);
    bind_sampling(m);
}
