// Multi-head latent attention: storing latents, and projections of each head by itself.
#include <algorithm>
#include <stdexcept>

#include "ops.h"

namespace octavo {
namespace {

class LatentAppend : public Op {
public:
    explicit LatentAppend(const Call& c)
        : q_latent_(c.inputs.at(0)), q_rope_(c.inputs.at(1)), latent_(c.inputs.at(2)), k_rope_(c.inputs.at(3)), q_(c.output),
          cache_(c.args.layer("kv").cache), kv_(c.args.layer("kv").view()), heads_(c.args.integer("spec.num_heads")),
          rotary_(c.args) {
        const int64_t rope = kv_.d - kv_.dv;
        if (!kv_.latent || kv_.heads != 1) throw std::invalid_argument("latent_append needs pages of latents");
        if (rope < 0 || rotary_.dim != rope)
            throw std::invalid_argument("the rotary tables must span the part of a key beside its latent");
        if (q_latent_.width != heads_ * kv_.dv || q_rope_.width != heads_ * rope ||
            latent_.width != kv_.dv || k_rope_.width != rope || q_.width != heads_ * kv_.d)
            throw std::invalid_argument("latent_append: the parts of q and k do not fit the pages");
    }
    int64_t units(const Step& s, int) const override { return s.batch.tokens * (heads_ + 1); }
    size_t scratch_bytes(const Kernels&) const override { return static_cast<size_t>(kv_.d) * 12 + 64; }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        const LatentArgs args{.q_latent = s.at(q_latent_),
                              .q_rope = s.at(q_rope_),
                              .latent = s.at(latent_),
                              .k_rope = s.at(k_rope_),
                              .q = s.at(q_),
                              .positions = s.batch.rope_positions,
                              .slots = cache_->slots(s.batch),
                              .kv = kv_,
                              .heads = heads_,
                              .cos = rotary_.cos,
                              .sin = rotary_.sin,
                              .interleaved = rotary_.interleaved};
        s.kernels->latent_append(args, begin, end, s.scratch_of(thread));
    }
    void check(const BatchView& b) const override {
        cache_->check_slots(b, kv_);
        rotary_.check(b);
    }

private:
    Buffer q_latent_, q_rope_, latent_, k_rope_, q_;
    std::shared_ptr<KVCache> cache_;
    KVView kv_;
    int64_t heads_;
    RotaryTables rotary_;
};

// x [T, H k] is read as T H rows of k: head h takes rows h, H + h, 2 H + h...
class HeadLinear : public Op {
public:
    explicit HeadLinear(const Call& c)
        : x_(c.inputs.at(0)), y_(c.output), weights_(c.args.weights("weights")), workspace_(c.workspace) {
        if (weights_.empty()) throw std::invalid_argument("head_linear needs a weight for each head");
        const Matrix& first = weights_[0]->view;
        for (const Weights& w : weights_)
            if (w->view.n != first.n || w->view.k != first.k || w->view.layout != first.layout || w->view.gated)
                throw std::invalid_argument("the heads' weights must have one shape and layout");
        if (x_.width != heads() * first.k || y_.width != heads() * first.n)
            throw std::invalid_argument("the heads' weights do not fit the rows");
    }
    int phases() const override { return 2; }
    int64_t units(const Step& s, int phase) const override {
        const int64_t m = s.rows(x_.rows);
        if (m == 0) return 0;
        return heads() * (phase == 0 ? m : weights_[0]->view.panels);
    }
    size_t scratch_bytes(const Kernels& k) const override { return linear_scratch_bytes(k, weights_[0]->view); }
    void begin(const Step& s) override {
        const int64_t m = s.rows(x_.rows), n = heads();
        rows_.resize(static_cast<size_t>(n * m));
        for (int64_t h = 0; h < n; h++)
            for (int64_t t = 0; t < m; t++) rows_[static_cast<size_t>(h * m + t)] = static_cast<int32_t>(t * n + h);
    }
    void run(const Step& s, int phase, int64_t begin, int64_t end, int thread) override {
        const int64_t m = s.rows(x_.rows), each = phase == 0 ? m : weights_[0]->view.panels;
        while (begin < end) { // one head's units after the other's
            const int64_t head = begin / each, base = head * each, stop = std::min(end, base + each);
            const Matrix& w = weights_[static_cast<size_t>(head)]->view;
            const int tile = is_quantized(w.layout) ? s.kernels->tile_int8 : s.kernels->tile_float;
            uint8_t* memory = s.arena + workspace_ + head * static_cast<int64_t>(activation_bytes(w.layout, m, w.k));
            const Activations a = activations_at(memory, w.layout, m, w.k, tile);
            if (phase == 0) {
                const PrepareArgs args{.x = s.at(x_), .rows = rows_.data() + head * m, .order = w.order, .to = a};
                s.kernels->prepare(args, begin - base, stop - base, s.scratch_of(thread));
            } else {
                const LinearArgs args{.w = w,
                                      .a = a,
                                      .y = s.at(y_) + head * w.n,
                                      .y_stride = y_.width,
                                      .scratch = reinterpret_cast<uint8_t*>(s.scratch_of(thread))};
                s.kernels->linear(args, begin - base, stop - base);
            }
            begin = stop;
        }
    }

private:
    int64_t heads() const { return static_cast<int64_t>(weights_.size()); }
    Buffer x_, y_;
    std::vector<Weights> weights_;
    int64_t workspace_; // arena offset
    std::vector<int32_t> rows_; // of x, head by head
};

size_t head_workspace(const Arguments& args, int64_t rows) {
    size_t total = 0;
    for (const Weights& w : args.weights("weights")) total += activation_bytes(w->view.layout, rows, w->view.k);
    return total;
}

template <class T> void make(const Call& c, Program& p) { p.add(std::make_unique<T>(c)); }

const OpType kLatentAppend{"latent_append", make<LatentAppend>};
const OpType kHeadLinear{"head_linear", make<HeadLinear>, head_workspace};

} // namespace
} // namespace octavo
