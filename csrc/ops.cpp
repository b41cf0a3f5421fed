#include "ops.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

int tile_of(const Kernels& k, const Matrix& m) { return is_quantized(m.layout) ? k.tile_int8 : k.tile_float; }

class Embed : public Op {
public:
    Embed(Buffer y, Weights table, float scale) : y_(y), table_(std::move(table)), scale_(scale) {}
    int64_t units(const Step& s, int) const override { return s.batch.tokens; }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        for (int64_t t = begin; t < end; t++)
            s.kernels->embed(table_->view, s.batch.token_ids[t], scale_, s.row(y_, t));
    }
    void check(const BatchView& b) const override {
        for (int64_t t = 0; t < b.tokens; t++)
            if (b.token_ids[t] < 0 || b.token_ids[t] >= table_->view.n)
                throw std::invalid_argument("token id " + std::to_string(b.token_ids[t]) +
                                            " lies outside the vocabulary of " + std::to_string(table_->view.n));
    }

private:
    Buffer y_;
    Weights table_;
    float scale_;
};

class EmbedPositions : public Op {
public:
    EmbedPositions(Buffer x, Buffer y, Weights table, int64_t offset)
        : x_(x), y_(y), table_(std::move(table)), offset_(offset) {}
    int64_t units(const Step& s, int) const override { return s.batch.tokens; }
    size_t scratch_bytes(const Kernels&) const override { return static_cast<size_t>(x_.width) * 4; }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        float* row = s.scratch_of(thread);
        for (int64_t t = begin; t < end; t++) {
            s.kernels->embed(table_->view, s.batch.positions[t] + offset_, 1.0f, row);
            s.kernels->add(s.row(x_, t), row, s.row(y_, t), x_.width);
        }
    }
    void check(const BatchView& b) const override {
        for (int64_t t = 0; t < b.tokens; t++)
            if (b.positions[t] + offset_ < 0 || b.positions[t] + offset_ >= table_->view.n)
                throw std::invalid_argument("a position lies outside the table of positions");
    }

private:
    Buffer x_, y_;
    Weights table_;
    int64_t offset_;
};

class Gather : public Op {
public:
    Gather(Buffer x, Buffer y) : x_(x), y_(y) {}
    int64_t units(const Step& s, int) const override { return s.batch.sampled_rows; }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        for (int64_t r = begin; r < end; r++)
            std::memcpy(s.row(y_, r), s.row(x_, s.batch.sampled[r]), static_cast<size_t>(x_.width) * 4);
    }

private:
    Buffer x_, y_;
};

// y = x, but for the rows of some tokens, which the batch brings.
class ReplaceRows : public Op {
public:
    ReplaceRows(Buffer x, Buffer y) : x_(x), y_(y) {}
    int64_t units(const Step& s, int) const override { return s.batch.tokens; }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        const BatchView& b = s.batch;
        std::memcpy(s.row(y_, begin), s.row(x_, begin), static_cast<size_t>((end - begin) * x_.width) * 4);
        const int32_t* last = b.replaced + b.replaced_count;
        for (const int32_t* t = std::lower_bound(b.replaced, last, begin); t < last && *t < end; t++)
            std::memcpy(s.row(y_, *t), b.replaced_rows + (t - b.replaced) * x_.width, static_cast<size_t>(x_.width) * 4);
    }
    void check(const BatchView& b) const override {
        if (b.replaced_count && b.replaced_width != x_.width)
            throw std::invalid_argument("replaced rows are as wide as the model's hidden states");
        for (int64_t i = 0; i < b.replaced_count; i++)
            if (b.replaced[i] < 0 || b.replaced[i] >= b.tokens || (i && b.replaced[i] <= b.replaced[i - 1]))
                throw std::invalid_argument("replaced rows are tokens of the batch, ascending");
    }

private:
    Buffer x_, y_;
};

class Norm : public Op {
public:
    Norm(Buffer x, Buffer y, NormOf norm) : x_(x), y_(y), norm_(norm) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        for (int64_t r = begin; r < end; r++)
            s.kernels->norm(s.row(x_, r), s.row(y_, r), x_.width, norm_.kind, norm_.gain, norm_.bias, norm_.eps);
    }

private:
    Buffer x_, y_;
    NormOf norm_;
};

class Add : public Op {
public:
    Add(Buffer x, Buffer y, Buffer z) : x_(x), y_(y), z_(z) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        s.kernels->add(s.row(x_, begin), s.row(y_, begin), s.row(z_, begin), (end - begin) * x_.width);
    }

private:
    Buffer x_, y_, z_;
};

class GateRows : public Op {
public:
    GateRows(Buffer x, Buffer gate, Buffer y) : x_(x), gate_(gate), y_(y) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        for (int64_t r = begin; r < end; r++)
            s.kernels->gate(s.row(x_, r), *s.row(gate_, r), s.row(y_, r), x_.width);
    }

private:
    Buffer x_, gate_, y_;
};

class Linear : public Op {
public:
    explicit Linear(LinearSpec spec) : spec_(std::move(spec)) {}
    int phases() const override { return 2; }
    int64_t units(const Step& s, int phase) const override {
        const int64_t m = s.rows(spec_.x.rows);
        if (phase == 1) return m ? spec_.weight->view.panels : 0;
        // Whole panels of tokens: two threads in one would write to the same cache lines.
        return in_place(m) ? 0 : split_tiles(m, tile_of(*s.kernels, spec_.weight->view)).count;
    }
    int together(const Step& s, int phase) const override {
        return phase == 1 && is_quantized(spec_.weight->view.layout) ? s.kernels->panels_at_once : 1;
    }
    size_t scratch_bytes(const Kernels& k) const override { return linear_scratch_bytes(k, spec_.weight->view); }
    void run(const Step& s, int phase, int64_t begin, int64_t end, int thread) override {
        const Matrix& w = spec_.weight->view;
        const int64_t m = s.rows(spec_.x.rows);
        Activations a = activations_at(s.arena + spec_.prepared, w.layout, m, w.k, tile_of(*s.kernels, w));
        if (phase == 0) {
            const NormOf& n = spec_.norm;
            s.kernels->prepare(
                {.x = s.at(spec_.x), .to = a, .norm = n.kind, .gain = n.gain, .bias = n.bias, .eps = n.eps},
                tile_start(a.tiles, begin), tile_start(a.tiles, end), s.scratch_of(thread));
            return;
        }
        if (in_place(m)) a.x = s.at(spec_.x);
        const LinearArgs args{.w = w,
                              .a = a,
                              .bias = spec_.bias,
                              .activation = spec_.activation,
                              .scale = spec_.scale,
                              .softcap = spec_.softcap,
                              .residual = spec_.has_residual ? s.at(spec_.residual) + spec_.column : nullptr,
                              .y = s.at(spec_.y) + spec_.column,
                              .y_stride = spec_.y.width,
                              .scratch = reinterpret_cast<uint8_t*>(s.scratch_of(thread)),
                              .upcoming = panel_at(s.upcoming[thread * Step::kLine])};
        s.kernels->linear(args, begin, end);
    }
    bool prefetches(int phase) const override { return phase == 1; }
    void prefetch(int64_t unit) const override {
        const uint8_t* panel = panel_at(unit);
        const int64_t bytes = std::min<int64_t>(spec_.weight->view.panel_bytes, kFirstBytes);
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(panel + i, 0, 2); // to the second-level cache
    }

private:
    enum { kFirstBytes = 8192 };
    const uint8_t* panel_at(int64_t unit) const {
        return unit < 0 ? nullptr : spec_.weight->view.data + unit * spec_.weight->view.panel_bytes;
    }
    // One float row is its own panel.
    bool in_place(int64_t m) const {
        return m == 1 && !is_quantized(spec_.weight->view.layout) && spec_.norm.kind == NormKind::None;
    }
    LinearSpec spec_;
};

class Rotary : public Op {
public:
    explicit Rotary(RotarySpec spec) : spec_(std::move(spec)), kv_(spec_.cache->layer(spec_.layer)) {}
    int64_t units(const Step& s, int) const override { return s.batch.tokens * (spec_.heads + 2 * kv_.heads); }
    size_t scratch_bytes(const Kernels&) const override { return static_cast<size_t>(kv_.d) * 12 + 64; }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        const RotaryArgs args{.qkv = s.at(spec_.qkv),
                              .q = s.at(spec_.q),
                              .positions = s.batch.rope_positions,
                              .slots = spec_.cache->slots(s.batch),
                              .kv = kv_,
                              .heads = spec_.heads,
                              .cos = spec_.cos,
                              .sin = spec_.sin,
                              .rotary_dim = spec_.rotary_dim,
                              .interleaved = spec_.interleaved,
                              .q_norm = spec_.q_norm,
                              .k_norm = spec_.k_norm,
                              .q_together = spec_.q_together,
                              .k_together = spec_.k_together,
                              .eps = spec_.eps};
        s.kernels->rotary_append(args, begin, end, s.scratch_of(thread));
    }
    void check(const BatchView& b) const override {
        spec_.cache->check_slots(b, kv_);
        if (spec_.cos) check_rotary(b, spec_.rotary_positions);
    }

private:
    RotarySpec spec_;
    KVView kv_;
};

} // namespace

void check_rotary(const BatchView& b, int64_t positions) {
    for (int64_t t = 0; t < b.tokens; t++)
        if (b.rope_positions[t] < 0 || b.rope_positions[t] >= positions)
            throw std::invalid_argument("a position lies outside the rotary tables");
}

size_t linear_scratch_bytes(const Kernels& k, const Matrix& w) {
    return static_cast<size_t>(std::max(w.k * 4, k.linear_scratch(w)));
}

std::unique_ptr<Op> make_embed(Buffer y, Weights table, float scale) {
    return std::make_unique<Embed>(y, std::move(table), scale);
}
std::unique_ptr<Op> make_embed_positions(Buffer x, Buffer y, Weights table, int64_t offset) {
    return std::make_unique<EmbedPositions>(x, y, std::move(table), offset);
}
std::unique_ptr<Op> make_gather(Buffer x, Buffer y) { return std::make_unique<Gather>(x, y); }
std::unique_ptr<Op> make_replace(Buffer x, Buffer y) { return std::make_unique<ReplaceRows>(x, y); }
std::unique_ptr<Op> make_norm(Buffer x, Buffer y, NormOf norm) { return std::make_unique<Norm>(x, y, norm); }
std::unique_ptr<Op> make_add(Buffer x, Buffer y, Buffer z) { return std::make_unique<Add>(x, y, z); }
std::unique_ptr<Op> make_gate(Buffer x, Buffer gate, Buffer y) { return std::make_unique<GateRows>(x, gate, y); }
std::unique_ptr<Op> make_linear(LinearSpec spec) { return std::make_unique<Linear>(std::move(spec)); }
std::unique_ptr<Op> make_rotary(RotarySpec spec) { return std::make_unique<Rotary>(std::move(spec)); }

} // namespace octavo
