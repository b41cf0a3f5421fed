// The Python class Program: ops added one by one, then replayed.
#pragma once
#include "bind.h"
#include "cpu.h"

namespace octavo {

// A norm as Python gives it.
struct NormArrays {
    NormKind kind;
    std::optional<Floats> gain, bias;
    float eps;
};

// The arrays of a batch, taken by their names from a ForwardBatch (kernels/forward_batch.py), and held as long as
// this lives.
class BatchArrays {
public:
    // Throws std::invalid_argument where one is no array of its type or their lengths disagree.
    explicit BatchArrays(nb::handle batch);
    BatchView view(int64_t given_rows) const;

private:
    void check() const;

    Ints token_ids_, positions_, slots_, query_start_, context_lens_, sampled_;
    IntTable page_tables_;
    std::optional<Ints> cross_lens_, sliding_slots_, rope_positions_, replaced_;
    std::optional<IntTable> cross_tables_, sliding_tables_;
    std::optional<Masks> tree_masks_;
    std::optional<Array<float, 2>> replaced_rows_;
};

// A program, what its ops share while it is built, and the arrays that they point into.
class Builder {
public:
    Builder(std::shared_ptr<Pool> pool, const std::string& isa, const Limits& limits, int64_t arena_bytes)
        : program_(std::move(pool), choose_kernels(isa), limits, arena_bytes) {}

    void embed(const Buffer& y, Weights table, float scale) {
        program_.add(make_embed(y, std::move(table), scale));
    }
    void embed_positions(const Buffer& x, const Buffer& y, Weights table, int64_t offset) {
        program_.add(make_embed_positions(x, y, std::move(table), offset));
    }
    void gather(const Buffer& x, const Buffer& y) { program_.add(make_gather(x, y)); }
    void replace(const Buffer& x, const Buffer& y) { program_.add(make_replace(x, y)); }
    void norm(const Buffer& x, const Buffer& y, const NormArrays& norm) {
        program_.add(make_norm(x, y, norm_of(norm)));
    }
    void add(const Buffer& x, const Buffer& y, const Buffer& z) {
        program_.add(make_add(x, y, z));
    }
    void gate_rows(const Buffer& x, const Buffer& gate, const Buffer& y) {
        program_.add(make_gate(x, gate, y));
    }
    void linear(const Buffer& x, const Buffer& y, int64_t column, Weights weight,
                const std::optional<NormArrays>& norm, std::optional<Floats> bias, int activation,
                std::optional<Buffer> residual, float scale, float softcap, int64_t prepared) {
        LinearSpec spec;
        spec.x = x;
        spec.y = y;
        spec.column = column;
        spec.weight = std::move(weight);
        if (norm) spec.norm = norm_of(*norm);
        spec.bias = hold(bias);
        spec.activation = static_cast<Activation>(activation);
        spec.has_residual = residual.has_value();
        if (residual) spec.residual = *residual;
        spec.scale = scale;
        spec.softcap = softcap;
        spec.prepared = prepared;
        program_.add(screens(spec) ? make_head(std::move(spec), program_.limits()) : make_linear(std::move(spec)));
    }
    void moe(const Buffer& x, const Buffer& router, const Buffer& y, const std::vector<Weights>& gate_up,
             const std::vector<Weights>& down, int64_t top_k, int activation, bool renormalize,
             nb::handle routing, int64_t workspace) {
        MoeSpec spec = moe_spec(gate_up, down, top_k);
        spec.x = x;
        spec.router = router;
        spec.y = y;
        spec.activation = static_cast<Activation>(activation);
        spec.renormalize = renormalize;
        spec.routing = routing_of(routing);
        check_routing(spec.routing, static_cast<int64_t>(gate_up.size()), top_k);
        spec.workspace = workspace;
        program_.add(make_moe(std::move(spec)));
    }
    void rotary_append(const Buffer& qkv, const Buffer& q, std::shared_ptr<KVCache> cache, size_t layer,
                       int64_t heads, std::optional<Floats> cos, std::optional<Floats> sin, bool interleaved,
                       std::optional<Floats> q_norm, std::optional<Floats> k_norm, float eps) {
        RotarySpec spec;
        spec.qkv = qkv;
        spec.q = q;
        spec.cache = std::move(cache);
        spec.layer = layer;
        spec.heads = heads;
        if (cos && sin) {
            spec.cos = hold(cos);
            spec.sin = hold(sin);
            spec.rotary_positions = static_cast<int64_t>(cos->shape(0));
            spec.rotary_dim = 2 * static_cast<int64_t>(cos->shape(1));
        }
        spec.interleaved = interleaved;
        spec.q_norm = hold(q_norm);
        spec.k_norm = hold(k_norm);
        const int64_t d = spec.cache->layer(layer).d, kv_heads = spec.cache->layer(layer).heads;
        spec.q_together = is_together(q_norm, d, heads);
        spec.k_together = is_together(k_norm, d, kv_heads);
        spec.eps = eps;
        program_.add(make_rotary(std::move(spec)));
    }
    void head_linear(const Buffer& x, const Buffer& y, const std::vector<Weights>& weights, int64_t workspace) {
        program_.add(make_head_linear({.x = x, .y = y, .weights = weights, .workspace = workspace}));
    }
    void latent_append(const Buffer& q_latent, const Buffer& q_rope, const Buffer& latent,
                       const Buffer& k_rope, const Buffer& q, std::shared_ptr<KVCache> cache, size_t layer,
                       int64_t heads, const Floats& cos, const Floats& sin, bool interleaved) {
        program_.add(make_latent({.q_latent = q_latent,
                                  .q_rope = q_rope,
                                  .latent = latent,
                                  .k_rope = k_rope,
                                  .q = q,
                                  .cache = std::move(cache),
                                  .layer = layer,
                                  .heads = heads,
                                  .cos = hold(cos),
                                  .sin = hold(sin),
                                  .rotary_dim = 2 * static_cast<int64_t>(cos.shape(1)),
                                  .rotary_positions = static_cast<int64_t>(cos.shape(0)),
                                  .interleaved = interleaved}));
    }
    void attention(const Buffer& q, const Buffer& y, std::shared_ptr<KVCache> cache, size_t layer,
                   int64_t heads, float scale, float softcap, int64_t window, std::optional<Floats> slopes,
                   std::optional<Floats> sinks, int sight, std::optional<Floats> bias) {
        AttentionOpSpec spec{.q = q,
                             .y = y,
                             .cache = std::move(cache),
                             .layer = layer,
                             .heads = heads,
                             .scale = scale,
                             .softcap = softcap,
                             .window = window,
                             .slopes = hold(slopes),
                             .sinks = hold(sinks),
                             .sight = static_cast<Sight>(sight),
                             .bias = hold(bias),
                             .reach = 0};
        if (bias) {
            const auto width = static_cast<int64_t>(bias->shape(1));
            spec.reach = width / 2 - kRescale;
            if (width % 2 == 0 || spec.reach < 0 || static_cast<int64_t>(bias->shape(0)) != heads)
                throw std::invalid_argument("a relative bias has a row a head, of odd length");
        }
        program_.add(plans_.make(std::move(spec), program_.limits(), program_.threads()));
    }
    void set_result(const Buffer& result) { program_.set_result(result); }

    static bool is_together(const std::optional<Floats>& gain, int64_t d, int64_t heads) {
        if (!gain) return false;
        const auto size = static_cast<int64_t>(gain->size());
        if (size != d && size != heads * d) throw std::invalid_argument("a q or k norm has one gain per element of a head, or of all heads");
        return size != d;
    }
    // The result as an array [rows, width] over the program's own memory. given_rows: of the Rows::Given buffers.
    nb::ndarray<nb::numpy, float> replay(nb::handle batch, int64_t given_rows, nb::handle self) {
        const BatchArrays arrays(batch);
        const BatchView view = arrays.view(given_rows);
        {
            nb::gil_scoped_release release;
            program_.replay(view);
        }
        return rows_of(program_.result(), self);
    }
    // Any buffer as an array: [rows of the last batch, width].
    nb::ndarray<nb::numpy, float> rows_of(const Buffer& buffer, nb::handle self) {
        const size_t shape[2] = {static_cast<size_t>(program_.rows(buffer.rows)), static_cast<size_t>(buffer.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(buffer), 2, shape, self);
    }
    // A buffer's memory [rows, width], to fill before a replay. Throws std::invalid_argument for more rows than it has.
    nb::ndarray<nb::numpy, float> memory(const Buffer& b, int64_t rows, nb::handle self) {
        if (rows < 0 || rows > program_.limits().rows(b.rows))
            throw std::invalid_argument("there is no memory for so many rows of this kind");
        const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(b.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(b), 2, shape, self);
    }

    Program& program() { return program_; }

private:
    // What ops may point to from now on; null for none.
    const float* hold(const std::optional<Floats>& array) { return array ? held_.emplace_back(*array).data() : nullptr; }
    NormOf norm_of(const NormArrays& n) {
        return {.kind = n.kind, .gain = hold(n.gain), .bias = hold(n.bias), .eps = n.eps};
    }
    // Of a kernels/types.py Routing.
    Routing routing_of(nb::handle r) {
        return {.sigmoid = nb::cast<bool>(r.attr("sigmoid")),
                .bias = hold(nb::cast<std::optional<Floats>>(r.attr("bias"))),
                .groups = nb::cast<int64_t>(r.attr("groups")),
                .top_groups = nb::cast<int64_t>(r.attr("top_groups")),
                .group_top = nb::cast<int64_t>(r.attr("group_top")),
                .scale = nb::cast<float>(r.attr("scale"))};
    }

    std::vector<Floats> held_;
    Program program_;
    AttentionPlans plans_;
};

} // namespace octavo
