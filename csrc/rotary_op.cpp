// Rotary embedding: queries and keys turned by their positions, keys and values to their pages.
#include <stdexcept>

#include "ops.h"

namespace octavo {
namespace {

// Whether a norm's gains are those of all heads together.
bool is_together(const Numbers& gain, int64_t d, int64_t heads) {
    if (!gain.data) return false;
    const int64_t size = gain.shape.back();
    if (gain.shape.size() != 1 || (size != d && size != heads * d))
        throw std::invalid_argument("a q or k norm has one gain per element of a head, or of all heads");
    return size != d;
}

class Rotary : public Op {
public:
    explicit Rotary(const Call& c)
        : qkv_(c.inputs.at(0)), q_(c.output), cache_(c.args.layer("kv").cache), kv_(c.args.layer("kv").view()),
          heads_(c.args.integer("spec.num_heads")), rotary_(c.args), q_norm_(c.args.floats("norms.q")),
          k_norm_(c.args.floats("norms.k")), q_together_(is_together(c.args.numbers("norms.q"), kv_.d, heads_)),
          k_together_(is_together(c.args.numbers("norms.k"), kv_.d, kv_.heads)), eps_(c.args.number("norms.eps")) {}
    int64_t units(const Step& s, int) const override { return s.batch.tokens * (heads_ + 2 * kv_.heads); }
    size_t scratch_bytes(const Kernels&) const override { return static_cast<size_t>(kv_.d) * 12 + 64; }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        const RotaryArgs args{.qkv = s.at(qkv_),
                              .q = s.at(q_),
                              .positions = s.batch.rope_positions,
                              .slots = cache_->slots(s.batch),
                              .kv = kv_,
                              .heads = heads_,
                              .cos = rotary_.cos,
                              .sin = rotary_.sin,
                              .rotary_dim = rotary_.dim,
                              .interleaved = rotary_.interleaved,
                              .q_norm = q_norm_,
                              .k_norm = k_norm_,
                              .q_together = q_together_,
                              .k_together = k_together_,
                              .eps = eps_};
        s.kernels->rotary_append(args, begin, end, s.scratch_of(thread));
    }
    void check(const BatchView& b) const override {
        cache_->check_slots(b, kv_);
        rotary_.check(b);
    }

private:
    Buffer qkv_, q_;
    std::shared_ptr<KVCache> cache_;
    KVView kv_;
    int64_t heads_;
    RotaryTables rotary_;
    const float *q_norm_, *k_norm_;
    bool q_together_, k_together_;
    float eps_;
};

const OpType kRotaryAppend{"rotary_append", [](const Call& c, Program& p) { p.add(std::make_unique<Rotary>(c)); }};

} // namespace

RotaryTables::RotaryTables(const Arguments& args)
    : cos(args.floats("rotary.cos")), sin(args.floats("rotary.sin")), interleaved(args.flag("rotary.interleaved")) {
    if (!cos) return;
    const std::vector<int64_t>& shape = args.numbers("rotary.cos").shape;
    if (shape.size() != 2 || shape != args.numbers("rotary.sin").shape)
        throw std::invalid_argument("rotary tables are of one shape [positions, half of what rotates]");
    positions = shape[0];
    dim = 2 * shape[1];
}

void RotaryTables::check(const BatchView& b) const {
    for (int64_t t = 0; cos && t < b.tokens; t++)
        if (b.rope_positions[t] < 0 || b.rope_positions[t] >= positions)
            throw std::invalid_argument("a position lies outside the rotary tables");
}

} // namespace octavo
