// Ops on rows, each row by itself: from tokens to rows, norms, sums.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops.h"

namespace octavo {
namespace {

class Embed : public Op {
public:
    explicit Embed(const Call& c) : y_(c.output), table_(c.args.weight("table")), scale_(c.args.number("scale")) {}
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
    explicit EmbedPositions(const Call& c)
        : x_(c.inputs.at(0)), y_(c.output), table_(c.args.weight("table")), offset_(c.args.integer("offset")) {}
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
    explicit Gather(const Call& c) : x_(c.inputs.at(0)), y_(c.output) {}
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
    explicit ReplaceRows(const Call& c) : x_(c.inputs.at(0)), y_(c.output) {}
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
    Norm(const Call& c, NormKind kind)
        : x_(c.inputs.at(0)), y_(c.output),
          norm_{.kind = kind,
                .gain = c.args.floats("gain"),
                .bias = kind == NormKind::Layer ? c.args.floats("bias") : nullptr,
                .eps = c.args.number("eps")} {}
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
    explicit Add(const Call& c) : x_(c.inputs.at(0)), y_(c.inputs.at(1)), z_(c.output) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        s.kernels->add(s.row(x_, begin), s.row(y_, begin), s.row(z_, begin), (end - begin) * x_.width);
    }

private:
    Buffer x_, y_, z_;
};

class GateRows : public Op {
public:
    explicit GateRows(const Call& c) : x_(c.inputs.at(0)), gate_(c.inputs.at(1)), y_(c.output) {}
    int64_t units(const Step& s, int) const override { return s.rows(x_.rows); }
    void run(const Step& s, int, int64_t begin, int64_t end, int) override {
        for (int64_t r = begin; r < end; r++)
            s.kernels->gate(s.row(x_, r), *s.row(gate_, r), s.row(y_, r), x_.width);
    }

private:
    Buffer x_, gate_, y_;
};

template <class T> void make(const Call& c, Program& p) { p.add(std::make_unique<T>(c)); }

const OpType kEmbed{"embed", make<Embed>};
const OpType kEmbedPositions{"embed_positions", make<EmbedPositions>};
const OpType kGatherRows{"gather_rows", make<Gather>};
const OpType kReplaceRows{"replace_rows", make<ReplaceRows>};
const OpType kRmsNorm{"rms_norm", [](const Call& c, Program& p) { p.add(std::make_unique<Norm>(c, NormKind::Rms)); }};
const OpType kLayerNorm{"layer_norm", [](const Call& c, Program& p) { p.add(std::make_unique<Norm>(c, NormKind::Layer)); }};
const OpType kAdd{"add", make<Add>};
const OpType kGateRows{"gate_rows", make<GateRows>};

} // namespace
} // namespace octavo
