// The Python module octavo.kernels._native.
#include "bind.h"

#include "calibrate.h"
#include "cpu.h"
#include "reading.h"

namespace octavo {
namespace {

const uint8_t* address(uint64_t a) { return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(a)); }

Weights pack_sources(Pool& pool, WeightArena& arena, const Matrix& as, const std::vector<Source>& sources,
                     const std::optional<Ints>& order, const nb::callable& after_slice) {
    std::vector<int32_t> columns;
    if (order) columns.assign(order->data(), order->data() + order->shape(0));
    nb::gil_scoped_release release;
    return pack(pool, arena, as, sources, std::move(columns), [&after_slice] {
        nb::gil_scoped_acquire acquire;
        after_slice();
    });
}

template <class T> T page_bytes(const KVCache& cache, nb::handle array) {
    T bytes = exactly<T>(array, "a page's bytes");
    if (static_cast<int64_t>(bytes.shape(0)) != cache.page_bytes()) refuse_array("a page's bytes");
    return bytes;
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
    m.def("bytes_read", &bytes_read);
    m.def("reading_ahead", [] { return std::vector<int64_t>(kReadingAhead.begin(), kReadingAhead.end()); });
    m.def("read_in_order", &read_in_order, nb::call_guard<nb::gil_scoped_release>());
    m.def("line_seconds", &line_seconds, nb::call_guard<nb::gil_scoped_release>());
    m.def("most_products", [] { return kMostProducts; });
    m.def("pack", &pack_sources, nb::kw_only(), "pool"_a, "arena"_a, "form"_a, "sources"_a, "order"_a.none(), "after_slice"_a);
    nb::class_<Matrix>(m, "Form")
        .def("__init__", [](Matrix* self, int layout, int64_t k, bool gated, bool wide, bool minima, bool zeros, int64_t group) {
            new (self) Matrix{.k = k, .layout = static_cast<Layout>(layout), .gated = gated, .wide = wide, .minima = minima, .zeros = zeros, .group = group};
        }, nb::kw_only(), "layout"_a, "k"_a, "gated"_a, "wide"_a, "minima"_a, "zeros"_a, "group"_a);

    nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def("leave", [](Pool& pool) {
        nb::gil_scoped_release release;
        pool.leave();
    });
    nb::class_<WeightArena>(m, "WeightArena")
        .def("__init__", [](WeightArena* self, const std::string& isa, bool planned) {
            new (self) WeightArena(planned, choose_kernels(isa)->integer_scales);
        }, "isa"_a, "planned"_a = false);
    nb::class_<PackedMatrix>(m, "Matrix")
        .def_prop_ro("shape", [](const PackedMatrix& p) { return std::pair(p.view.n, p.view.k); })
        .def_prop_ro("cut", [](const PackedMatrix& p) { return p.view.layout == Layout::S8Cut; })
        .def_ro("nbytes", &PackedMatrix::nbytes);
    nb::class_<Table>(m, "Table")
        .def("__init__", [](Table* self, uint64_t data, int64_t row_stride, int64_t column_stride, bool wide) {
            new (self) Table{.data = address(data), .row_stride = row_stride, .column_stride = column_stride, .wide = wide};
        }, nb::kw_only(), "data"_a, "row_stride"_a, "column_stride"_a, "wide"_a);
    nb::class_<Source>(m, "Source")
        .def("__init__", [](Source* self, uint64_t values, int64_t rows, int64_t row_stride, int64_t block_stride,
                            std::optional<Table> scale, std::optional<Table> minimum) {
            new (self) Source{.values = address(values),
                              .rows = rows,
                              .row_stride = row_stride,
                              .block_stride = block_stride,
                              .scale = scale.value_or(Table{}),
                              .minimum = minimum.value_or(Table{})};
        }, nb::kw_only(), "values"_a, "rows"_a, "row_stride"_a, "block_stride"_a, "scale"_a.none(), "minimum"_a.none());
    nb::class_<KVShape>(m, "KVShape")
        .def("__init__", [](KVShape* self, int64_t heads, int64_t d, int64_t dv, int type, bool latent) {
            new (self) KVShape{.heads = heads, .d = d, .dv = dv, .type = static_cast<KVType>(type), .latent = latent};
        }, nb::kw_only(), "heads"_a, "d"_a, "dv"_a, "type"_a, "latent"_a);
    nb::class_<KVLayer>(m, "KVLayer")
        .def("__init__", [](KVLayer* self, std::shared_ptr<KVCache> cache, size_t index) {
            new (self) KVLayer{.cache = std::move(cache), .index = index};
        }, "cache"_a, "index"_a);
    nb::class_<KVCache>(m, "KVCache")
        .def(nb::init<const std::vector<KVShape>&, int64_t, int64_t, bool>(), nb::kw_only(), "layers"_a, "num_pages"_a,
             "page_size"_a, "sliding"_a = false)
        .def_prop_ro("nbytes", &KVCache::nbytes)
        .def("copy_pages", &KVCache::copy_pages, nb::call_guard<nb::gil_scoped_release>())
        .def("move_slots", &KVCache::move_slots, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("page_bytes", &KVCache::page_bytes)
        .def("read_page", [](const KVCache& self, int64_t page, nb::handle to) {
            self.read_page(page, page_bytes<Result<uint8_t, 1>>(self, to).data());
        }, "page"_a, "to"_a)
        .def("write_page", [](KVCache& self, int64_t page, nb::handle from) {
            self.write_page(page, page_bytes<Array<uint8_t, 1>>(self, from).data());
        }, "page"_a, "data"_a);

    bind_program(m);
    bind_sampling(m);
    bind_spec(m);
}
