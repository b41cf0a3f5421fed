// The Python module octavo.kernels._native. Arrays that a program keeps pointers into (gains, tables)
// are kept alive by its Python owner, kernels/cpu.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "calibrate.h"
#include "cpu.h"
#include "decode.h"
#include "ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

using Floats = nb::ndarray<const float, nb::numpy, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using BufferTuple = std::tuple<int, int64_t, int64_t>;
// address, row stride, column stride, is f32
using TableTuple = std::tuple<uint64_t, int64_t, int64_t, bool>;
// address, rows, row stride, block stride, scales, minima
using SourceTuple = std::tuple<uint64_t, int64_t, int64_t, int64_t, TableTuple, TableTuple>;
// kind, gain, bias, eps
using NormTuple = std::tuple<int, std::optional<Floats>, std::optional<Floats>, float>;

const float* data_of(const std::optional<Floats>& x) { return x ? x->data() : nullptr; }
const uint8_t* address(uint64_t a) { return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(a)); }
Buffer buffer_of(const BufferTuple& b) {
    return {static_cast<Rows>(std::get<0>(b)), std::get<1>(b), std::get<2>(b)};
}
Table table_of(const TableTuple& t) { return {address(std::get<0>(t)), std::get<1>(t), std::get<2>(t), std::get<3>(t)}; }
NormOf norm_of(const NormTuple& n) {
    return {static_cast<NormKind>(std::get<0>(n)), data_of(std::get<1>(n)), data_of(std::get<2>(n)), std::get<3>(n)};
}

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

// sigmoid, bias, groups, top groups, best of a group that count, scale
using RoutingTuple = std::tuple<bool, std::optional<Floats>, int64_t, int64_t, int64_t, float>;

Routing routing_of(const RoutingTuple& r) {
    return {std::get<0>(r), data_of(std::get<1>(r)), std::get<2>(r), std::get<3>(r), std::get<4>(r), std::get<5>(r)};
}

MoeSpec moe_spec(const std::vector<Weights>& gate_up, const std::vector<Weights>& down, int64_t top_k) {
    MoeSpec spec;
    if (gate_up.empty() || gate_up.size() != down.size()) throw std::invalid_argument("each expert has gate_up and down");
    auto same = [](const Matrix& a, const Matrix& b) {
        return a.n == b.n && a.k == b.k && a.layout == b.layout && a.gated == b.gated;
    };
    for (size_t i = 0; i < gate_up.size(); i++)
        if (!same(gate_up[0]->view, gate_up[i]->view) || !same(down[0]->view, down[i]->view))
            throw std::invalid_argument("experts must have one shape and layout");
    spec.gate_up = gate_up;
    spec.down = down;
    spec.top_k = top_k;
    return spec;
}

template <class T, int N> using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, int N> using Result = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using TokenListsTuple = std::tuple<Array<int64_t, 1>, Array<int32_t, 1>, Array<float, 1>>;

TokenListsView lists_of(const TokenListsTuple& t, size_t rows) {
    const auto& [starts, tokens, values] = t;
    if (starts.shape(0) != rows + 1 || tokens.shape(0) != values.shape(0))
        throw std::invalid_argument("a token list's arrays differ in length");
    return {starts.data(), tokens.data(), values.data(), static_cast<int64_t>(tokens.shape(0))};
}

// The tokens; what belongs to log-probabilities is written to the arrays, which are empty where no row asks.
std::vector<int32_t> sample(Sampler& sampler, const Array<float, 2>& logits, const Array<uint8_t, 1>& params,
                            const Array<int64_t, 1>& positions, const TokenListsTuple& bias,
                            const TokenListsTuple& banned, const TokenListsTuple& seen,
                            const std::optional<Array<uint32_t, 2>>& mask,
                            const std::optional<Array<int32_t, 1>>& given, const Result<double, 1>& logprob,
                            const Result<int64_t, 1>& rank, const Result<int32_t, 2>& top_token,
                            const Result<double, 2>& top_logprob) {
    const size_t rows = logits.shape(0), vocab = logits.shape(1), scored = logprob.shape(0);
    if (vocab != static_cast<size_t>(sampler.vocab())) throw std::invalid_argument("the logits have another vocabulary");
    if (params.shape(0) != rows * sizeof(SampleParams) ||
        reinterpret_cast<uintptr_t>(params.data()) % alignof(SampleParams))
        throw std::invalid_argument("the rows' records have another layout");
    const bool same = positions.shape(0) == rows && (scored == rows || scored == 0) && rank.shape(0) == scored &&
                      top_token.shape(0) == scored && top_logprob.shape(0) == scored &&
                      top_token.shape(1) == top_logprob.shape(1);
    if (!same || (given && given->shape(0) != rows) || (mask && (mask->shape(0) != rows || mask->shape(1) != (vocab + 31) / 32)))
        throw std::invalid_argument("arrays of a sampling batch differ in length");
    std::vector<int32_t> token(rows);
    const SampleBatch batch{logits.data(), static_cast<int64_t>(rows), static_cast<int64_t>(vocab),
                            reinterpret_cast<const SampleParams*>(params.data()), positions.data(), lists_of(bias, rows),
                            lists_of(banned, rows), lists_of(seen, rows), mask ? mask->data() : nullptr,
                            given ? given->data() : nullptr, token.data(), logprob.data(), rank.data(), top_token.data(), top_logprob.data(),
                            scored ? static_cast<int64_t>(top_token.shape(1)) : -1};
    nb::gil_scoped_release release;
    sampler.sample(batch);
    return token;
}

// A program and what its ops share while it is built.
class Builder {
public:
    Builder(std::shared_ptr<Pool> pool, const std::string& isa, std::tuple<int64_t, int64_t, int64_t, int64_t> limits,
            int64_t arena_bytes)
        : program_(std::move(pool), choose_kernels(isa),
                   {std::get<0>(limits), std::get<1>(limits), std::get<2>(limits), std::get<3>(limits)}, arena_bytes) {}

    void embed(const BufferTuple& y, Weights table, float scale) {
        program_.add(make_embed(buffer_of(y), std::move(table), scale));
    }
    void embed_positions(const BufferTuple& x, const BufferTuple& y, Weights table, int64_t offset) {
        program_.add(make_embed_positions(buffer_of(x), buffer_of(y), std::move(table), offset));
    }
    void gather(const BufferTuple& x, const BufferTuple& y) { program_.add(make_gather(buffer_of(x), buffer_of(y))); }
    void pool(const BufferTuple& x, const BufferTuple& y, bool mean) {
        program_.add(make_pool(buffer_of(x), buffer_of(y), mean));
    }
    void norm(const BufferTuple& x, const BufferTuple& y, const NormTuple& norm) {
        program_.add(make_norm(buffer_of(x), buffer_of(y), norm_of(norm)));
    }
    void act_mul(const BufferTuple& x, const BufferTuple& y, int activation) {
        program_.add(make_act_mul(buffer_of(x), buffer_of(y), static_cast<Activation>(activation)));
    }
    void add(const BufferTuple& x, const BufferTuple& y, const BufferTuple& z) {
        program_.add(make_add(buffer_of(x), buffer_of(y), buffer_of(z)));
    }
    void gate_rows(const BufferTuple& x, const BufferTuple& gate, const BufferTuple& y) {
        program_.add(make_gate(buffer_of(x), buffer_of(gate), buffer_of(y)));
    }
    void linear(const BufferTuple& x, const BufferTuple& y, int64_t column, Weights weight, const NormTuple& norm,
                std::optional<Floats> bias, int activation, std::optional<BufferTuple> residual, float scale,
                float softcap, int64_t prepared) {
        LinearSpec spec;
        spec.x = buffer_of(x);
        spec.y = buffer_of(y);
        spec.column = column;
        spec.weight = std::move(weight);
        spec.norm = norm_of(norm);
        spec.bias = data_of(bias);
        spec.activation = static_cast<Activation>(activation);
        spec.has_residual = residual.has_value();
        if (residual) spec.residual = buffer_of(*residual);
        spec.scale = scale;
        spec.softcap = softcap;
        spec.prepared = prepared;
        program_.add(make_linear(std::move(spec)));
    }
    void moe(const BufferTuple& x, const BufferTuple& router, const BufferTuple& y, const std::vector<Weights>& gate_up,
             const std::vector<Weights>& down, int64_t top_k, int activation, bool renormalize,
             const RoutingTuple& routing, int64_t workspace) {
        MoeSpec spec = moe_spec(gate_up, down, top_k);
        spec.x = buffer_of(x);
        spec.router = buffer_of(router);
        spec.y = buffer_of(y);
        spec.activation = static_cast<Activation>(activation);
        spec.renormalize = renormalize;
        spec.routing = routing_of(routing);
        check_routing(spec.routing, static_cast<int64_t>(gate_up.size()), top_k);
        spec.workspace = workspace;
        program_.add(make_moe(std::move(spec)));
    }
    void rotary_append(const BufferTuple& qkv, const BufferTuple& q, std::shared_ptr<KVCache> cache, size_t layer,
                       int64_t heads, std::optional<Floats> cos, std::optional<Floats> sin, bool interleaved,
                       std::optional<Floats> q_norm, std::optional<Floats> k_norm, float eps) {
        RotarySpec spec;
        spec.qkv = buffer_of(qkv);
        spec.q = buffer_of(q);
        spec.cache = std::move(cache);
        spec.layer = layer;
        spec.heads = heads;
        if (cos && sin) {
            spec.cos = cos->data();
            spec.sin = sin->data();
            spec.rotary_positions = static_cast<int64_t>(cos->shape(0));
            spec.rotary_dim = 2 * static_cast<int64_t>(cos->shape(1));
        }
        spec.interleaved = interleaved;
        spec.q_norm = data_of(q_norm);
        spec.k_norm = data_of(k_norm);
        const int64_t d = spec.cache->layer(layer).d, kv_heads = spec.cache->layer(layer).heads;
        spec.q_together = is_together(q_norm, d, heads);
        spec.k_together = is_together(k_norm, d, kv_heads);
        spec.eps = eps;
        program_.add(make_rotary(std::move(spec)));
    }
    void head_linear(const BufferTuple& x, const BufferTuple& y, const std::vector<Weights>& weights, int64_t workspace) {
        program_.add(make_head_linear({buffer_of(x), buffer_of(y), weights, workspace}));
    }
    void latent_append(const BufferTuple& q_latent, const BufferTuple& q_rope, const BufferTuple& latent,
                       const BufferTuple& k_rope, const BufferTuple& q, std::shared_ptr<KVCache> cache, size_t layer,
                       int64_t heads, const Floats& cos, const Floats& sin, bool interleaved) {
        program_.add(make_latent({buffer_of(q_latent), buffer_of(q_rope), buffer_of(latent), buffer_of(k_rope),
                                  buffer_of(q), std::move(cache), layer, heads, cos.data(), sin.data(),
                                  2 * static_cast<int64_t>(cos.shape(1)), static_cast<int64_t>(cos.shape(0)),
                                  interleaved}));
    }
    void attention(const BufferTuple& q, const BufferTuple& y, std::shared_ptr<KVCache> cache, size_t layer,
                   int64_t heads, float scale, float softcap, int64_t window, std::optional<Floats> slopes,
                   std::optional<Floats> sinks, int sight, std::optional<Floats> bias) {
        AttentionOpSpec spec{buffer_of(q), buffer_of(y), std::move(cache), layer, heads, scale, softcap, window,
                             data_of(slopes), data_of(sinks), static_cast<Sight>(sight), data_of(bias), 0};
        if (bias) {
            const auto width = static_cast<int64_t>(bias->shape(1));
            spec.reach = width / 2 - kRescale;
            if (width % 2 == 0 || spec.reach < 0 || static_cast<int64_t>(bias->shape(0)) != heads)
                throw std::invalid_argument("a relative bias has a row a head, of odd length");
        }
        program_.add(plans_.make(std::move(spec), program_.limits(), program_.threads()));
    }
    void set_result(const BufferTuple& result) { program_.set_result(buffer_of(result)); }

    static bool is_together(const std::optional<Floats>& gain, int64_t d, int64_t heads) {
        if (!gain) return false;
        const auto size = static_cast<int64_t>(gain->size());
        if (size != d && size != heads * d) throw std::invalid_argument("a q or k norm has one gain per element of a head, or of all heads");
        return size != d;
    }
    // The result as an array [rows, width] over the program's own memory.
    nb::ndarray<nb::numpy, float> replay(const Ints& token_ids, const Ints& positions, const Ints& slots,
                                         const Ints& query_start, const Ints& context_lens,
                                         const IntTable& page_tables, const Ints& sampled,
                                         const std::optional<Ints>& cross_lens,
                                         const std::optional<IntTable>& cross_tables,
                                         const std::optional<Masks>& tree_masks, nb::handle self) {
        BatchView b{token_ids.data(), positions.data(), slots.data(), query_start.data(), context_lens.data(),
                    page_tables.data(), sampled.data(), static_cast<int64_t>(token_ids.shape(0)),
                    static_cast<int64_t>(context_lens.shape(0)), static_cast<int64_t>(sampled.shape(0)),
                    static_cast<int64_t>(page_tables.shape(1)), nullptr, nullptr, 0, nullptr, 0};
        if (cross_lens && cross_tables) {
            if (cross_lens->shape(0) != context_lens.shape(0) || cross_tables->shape(0) != context_lens.shape(0))
                throw std::invalid_argument("cross_lens, cross_tables and context_lens differ in length");
            b.cross_lens = cross_lens->data();
            b.cross_tables = cross_tables->data();
            b.cross_width = static_cast<int64_t>(cross_tables->shape(1));
        }
        if (tree_masks) {
            if (tree_masks->shape(0) != token_ids.shape(0) || tree_masks->shape(1) < 1)
                throw std::invalid_argument("tree_masks has a row of words for each token");
            b.tree_masks = tree_masks->data();
            b.tree_words = static_cast<int64_t>(tree_masks->shape(1));
        }
        if (positions.shape(0) != token_ids.shape(0) || slots.shape(0) != token_ids.shape(0))
            throw std::invalid_argument("token_ids, positions and slots differ in length");
        if (query_start.shape(0) != context_lens.shape(0) + 1 || page_tables.shape(0) != context_lens.shape(0))
            throw std::invalid_argument("query_start, context_lens and page_tables differ in length");
        {
            nb::gil_scoped_release release;
            program_.replay(b);
        }
        return rows_of(program_.result(), self);
    }
    // Any buffer as an array: [rows of the last batch, width].
    nb::ndarray<nb::numpy, float> rows_of(const Buffer& buffer, nb::handle self) {
        const size_t shape[2] = {static_cast<size_t>(program_.rows(buffer.rows)), static_cast<size_t>(buffer.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(buffer), 2, shape, self);
    }
    // A buffer's memory [rows, width], to fill before a replay.
    nb::ndarray<nb::numpy, float> memory(const BufferTuple& tuple, int64_t rows, nb::handle self) {
        const Buffer b = buffer_of(tuple);
        const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(b.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(b), 2, shape, self);
    }

    Program& program() { return program_; }

private:
    Program program_;
    AttentionPlans plans_;
};

// Its arrays are kept alive by their Python owner.
DecodeRows decode_rows(const Result<int32_t, 2>& tokens, const Result<int64_t, 1>& lengths, const IntTable& pages,
                       int64_t page_size, const Array<uint8_t, 1>& params) {
    const size_t rows = tokens.shape(0);
    if (lengths.shape(0) != rows || pages.shape(0) != rows || params.shape(0) != rows * sizeof(SampleParams) ||
        reinterpret_cast<uintptr_t>(params.data()) % alignof(SampleParams))
        throw std::invalid_argument("the rows' arrays differ in length");
    return {tokens.data(), static_cast<int64_t>(tokens.shape(1)), lengths.data(), static_cast<int64_t>(rows),
            pages.data(), static_cast<int64_t>(pages.shape(1)), page_size,
            reinterpret_cast<const SampleParams*>(params.data())};
}

std::vector<int32_t> decode(Decoder& decoder, const std::vector<int32_t>& rows, const std::vector<int32_t>& starts,
                            const std::optional<Array<uint32_t, 2>>& mask) {
    if (mask && (mask->shape(0) != rows.size() || mask->shape(1) != static_cast<size_t>(decoder.vocab() + 31) / 32))
        throw std::invalid_argument("the mask has a line of bits for each row");
    std::vector<int32_t> drawn;
    const uint32_t* bits = mask ? mask->data() : nullptr;
    nb::gil_scoped_release release;
    decoder.step(rows, starts, bits, drawn);
    return drawn;
}

std::vector<int32_t> redraw(Decoder& decoder, const std::vector<int32_t>& indices, const Array<uint32_t, 2>& mask) {
    if (mask.shape(0) != indices.size() || mask.shape(1) != static_cast<size_t>(decoder.vocab() + 31) / 32)
        throw std::invalid_argument("the mask has a line of bits for each index");
    std::vector<int32_t> drawn;
    nb::gil_scoped_release release;
    decoder.redraw(indices, mask.data(), drawn);
    return drawn;
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

    m.def("head_linear_workspace", &head_linear_workspace);

    nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def_prop_ro("size", &Pool::size);
    nb::class_<Sampler>(m, "Sampler")
        .def("__init__", [](Sampler* self, std::shared_ptr<Pool> pool, const std::string& isa, int64_t vocab) {
            new (self) Sampler(std::move(pool), choose_kernels(isa), vocab);
        })
        .def("sample", &sample, "logits"_a, "params"_a, "positions"_a, "bias"_a, "banned"_a, "seen"_a, "mask"_a.none(),
             "given"_a.none(), "logprob"_a, "rank"_a, "top_token"_a, "top_logprob"_a);
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
                            int64_t num_pages, int64_t page_size) {
            std::vector<KVShape> shapes;
            for (const auto& [heads, d, dv, type, latent] : layers)
                shapes.push_back({heads, d, dv, static_cast<KVType>(type), latent});
            new (self) KVCache(shapes, num_pages, page_size);
        })
        .def_prop_ro("nbytes", &KVCache::nbytes)
        .def("copy_pages", &KVCache::copy_pages, nb::call_guard<nb::gil_scoped_release>())
        .def("pages", [](nb::handle_t<KVCache> self) {
            const KVCache& cache = nb::cast<const KVCache&>(self);
            const size_t shape[2] = {static_cast<size_t>(cache.num_pages()), static_cast<size_t>(cache.page_bytes())};
            return nb::ndarray<nb::numpy, uint8_t>(cache.data(), 2, shape, self);
        });

    nb::class_<Builder>(m, "Program")
        .def(nb::init<std::shared_ptr<Pool>, const std::string&, std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t>())
        .def("embed", &Builder::embed)
        .def("embed_positions", &Builder::embed_positions)
        .def("gather", &Builder::gather)
        .def("pool", &Builder::pool)
        .def("norm", &Builder::norm)
        .def("act_mul", &Builder::act_mul)
        .def("add", &Builder::add)
        .def("gate_rows", &Builder::gate_rows)
        .def("linear", &Builder::linear, "x"_a, "y"_a, "column"_a, "weight"_a, "norm"_a, "bias"_a.none(), "activation"_a,
             "residual"_a.none(), "scale"_a, "softcap"_a, "prepared"_a)
        .def("moe", &Builder::moe)
        .def("rotary_append", &Builder::rotary_append, "qkv"_a, "q"_a, "cache"_a, "layer"_a, "heads"_a, "cos"_a.none(),
             "sin"_a.none(), "interleaved"_a, "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
        .def("head_linear", &Builder::head_linear)
        .def("latent_append", &Builder::latent_append)
        .def("attention", &Builder::attention, "q"_a, "y"_a, "cache"_a, "layer"_a, "heads"_a, "scale"_a, "softcap"_a,
             "window"_a, "slopes"_a.none(), "sinks"_a.none(), "sight"_a, "bias"_a.none())
        .def("set_result", &Builder::set_result)
        .def("replay", [](nb::handle self, const Ints& token_ids, const Ints& positions, const Ints& slots,
                          const Ints& query_start, const Ints& context_lens, const IntTable& page_tables,
                          const Ints& sampled, const std::optional<Ints>& cross_lens,
                          const std::optional<IntTable>& cross_tables, const std::optional<Masks>& tree_masks) {
            return nb::cast<Builder&>(self).replay(token_ids, positions, slots, query_start, context_lens, page_tables,
                                                   sampled, cross_lens, cross_tables, tree_masks, self);
        }, "token_ids"_a, "positions"_a, "slots"_a, "query_start"_a, "context_lens"_a, "page_tables"_a,
             "sampled"_a, "cross_lens"_a.none(), "cross_tables"_a.none(), "tree_masks"_a.none())
        .def("memory", [](nb::handle self, const BufferTuple& buffer, int64_t rows) {
            return nb::cast<Builder&>(self).memory(buffer, rows, self);
        });
    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", [](Decoder* self, Builder& program, Sampler& sampler, const Result<int32_t, 2>& tokens,
                            const Result<int64_t, 1>& lengths, const IntTable& pages, int64_t page_size,
                            const Array<uint8_t, 1>& params) {
            new (self) Decoder(program.program(), sampler, decode_rows(tokens, lengths, pages, page_size, params));
        }, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def_prop_ro("forward_s", &Decoder::forward_s)
        .def_prop_ro("drawing_s", &Decoder::drawing_s)
        .def("step", &decode, "rows"_a, "starts"_a, "mask"_a.none() = nb::none())
        .def("redraw", &redraw, "indices"_a, "mask"_a);
}
