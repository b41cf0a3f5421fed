// Multi-head latent attention: storing latents, and projections of each head by itself.
#include <algorithm>
#include <stdexcept>

#include "ops.h"

namespace octavo {
namespace {

class LatentAppend : public Op {
public:
    explicit LatentAppend(LatentSpec spec) : spec_(std::move(spec)), kv_(spec_.cache->layer(spec_.layer)) {
        const int64_t rope = kv_.d - kv_.dv;
        if (!kv_.latent || kv_.heads != 1) throw std::invalid_argument("latent_append needs pages of latents");
        if (rope < 0 || spec_.rotary_dim != rope)
            throw std::invalid_argument("the rotary tables must span the part of a key beside its latent");
        if (spec_.q_latent.width != spec_.heads * kv_.dv || spec_.q_rope.width != spec_.heads * rope ||
            spec_.latent.width != kv_.dv || spec_.k_rope.width != rope || spec_.q.width != spec_.heads * kv_.d)
            throw std::invalid_argument("latent_append: the parts of q and k do not fit the pages");
    }
    int64_t units(const Step& s, int) const override { return s.batch.tokens * (spec_.heads + 1); }
    size_t scratch_bytes(const Kernels&) const override { return static_cast<size_t>(kv_.d) * 12 + 64; }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        const LatentArgs args{.q_latent = s.at(spec_.q_latent),
                              .q_rope = s.at(spec_.q_rope),
                              .latent = s.at(spec_.latent),
                              .k_rope = s.at(spec_.k_rope),
                              .q = s.at(spec_.q),
                              .positions = s.batch.rope_positions,
                              .slots = spec_.cache->slots(s.batch),
                              .kv = kv_,
                              .heads = spec_.heads,
                              .cos = spec_.cos,
                              .sin = spec_.sin,
                              .interleaved = spec_.interleaved};
        s.kernels->latent_append(args, begin, end, s.scratch_of(thread));
    }
    void check(const BatchView& b) const override {
        spec_.cache->check_slots(b, kv_);
        check_rotary(b, spec_.rotary_positions);
    }

private:
    LatentSpec spec_;
    KVView kv_;
};

// x [T, H k] is read as T H rows of k: head h takes rows h, H + h, 2 H + h...
class HeadLinear : public Op {
public:
    explicit HeadLinear(HeadLinearSpec spec) : spec_(std::move(spec)) {
        if (spec_.weights.empty()) throw std::invalid_argument("head_linear needs a weight for each head");
        const Matrix& first = spec_.weights[0]->view;
        for (const Weights& w : spec_.weights)
            if (w->view.n != first.n || w->view.k != first.k || w->view.layout != first.layout || w->view.gated)
                throw std::invalid_argument("the heads' weights must have one shape and layout");
        if (spec_.x.width != heads() * first.k || spec_.y.width != heads() * first.n)
            throw std::invalid_argument("the heads' weights do not fit the rows");
    }
    int phases() const override { return 2; }
    int64_t units(const Step& s, int phase) const override {
        const int64_t m = s.rows(spec_.x.rows);
        if (m == 0) return 0;
        return heads() * (phase == 0 ? m : spec_.weights[0]->view.panels);
    }
    size_t scratch_bytes(const Kernels& k) const override { return linear_scratch_bytes(k, spec_.weights[0]->view); }
    void begin(const Step& s) override {
        const int64_t m = s.rows(spec_.x.rows), n = heads();
        rows_.resize(static_cast<size_t>(n * m));
        for (int64_t h = 0; h < n; h++)
            for (int64_t t = 0; t < m; t++) rows_[static_cast<size_t>(h * m + t)] = static_cast<int32_t>(t * n + h);
    }
    void run(const Step& s, int phase, int64_t begin, int64_t end, int thread) override {
        const int64_t m = s.rows(spec_.x.rows), each = phase == 0 ? m : spec_.weights[0]->view.panels;
        while (begin < end) { // one head's units after the other's
            const int64_t head = begin / each, base = head * each, stop = std::min(end, base + each);
            const Matrix& w = spec_.weights[static_cast<size_t>(head)]->view;
            const int tile = is_quantized(w.layout) ? s.kernels->tile_int8 : s.kernels->tile_float;
            uint8_t* memory = s.arena + spec_.workspace + head * static_cast<int64_t>(activation_bytes(w.layout, m, w.k));
            const Activations a = activations_at(memory, w.layout, m, w.k, tile);
            if (phase == 0) {
                const PrepareArgs args{.x = s.at(spec_.x), .rows = rows_.data() + head * m, .to = a};
                s.kernels->prepare(args, begin - base, stop - base, s.scratch_of(thread));
            } else {
                const LinearArgs args{.w = w,
                                      .a = a,
                                      .y = s.at(spec_.y) + head * w.n,
                                      .y_stride = spec_.y.width,
                                      .scratch = reinterpret_cast<uint8_t*>(s.scratch_of(thread))};
                s.kernels->linear(args, begin - base, stop - base);
            }
            begin = stop;
        }
    }

private:
    int64_t heads() const { return static_cast<int64_t>(spec_.weights.size()); }
    HeadLinearSpec spec_;
    std::vector<int32_t> rows_; // of x, head by head
};

} // namespace

std::unique_ptr<Op> make_latent(LatentSpec spec) { return std::make_unique<LatentAppend>(std::move(spec)); }
std::unique_ptr<Op> make_head_linear(HeadLinearSpec spec) { return std::make_unique<HeadLinear>(std::move(spec)); }
size_t head_linear_workspace(const std::vector<Weights>& weights, int64_t max_rows) {
    size_t total = 0;
    for (const Weights& w : weights) total += activation_bytes(w->view.layout, max_rows, w->view.k);
    return total;
}

} // namespace octavo
