// Products with a weight: prepare the rows, then the panels.
#include <algorithm>

#include "ops.h"

namespace octavo {
namespace {

int tile_of(const Kernels& k, const Matrix& m) { return is_quantized(m.layout) ? k.tile_int8 : k.tile_float; }

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
                {.x = s.at(spec_.x), .order = w.order, .to = a, .norm = n.kind, .gain = n.gain, .bias = n.bias, .eps = n.eps},
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
                              .upcoming = panel_at(s.upcoming[thread * Step::kLine]),
                              .near = m == 1 && asks_near()};
        s.kernels->linear(args, begin, end);
    }
    bool prefetches(int phase) const override { return phase == 1; }
    void prefetch(const Step&, int64_t unit) const override {
        const Matrix& w = spec_.weight->view;
        ask_for_bytes(panel_at(unit), std::min<int64_t>((w.panels - unit) * w.panel_bytes, kFirstBytes));
    }

private:
    const uint8_t* panel_at(int64_t unit) const {
        return unit < 0 ? nullptr : spec_.weight->view.data + unit * spec_.weight->view.panel_bytes;
    }
    // One float row is its own panel.
    bool in_place(int64_t m) const {
        return m == 1 && !is_quantized(spec_.weight->view.layout) && spec_.norm.kind == NormKind::None;
    }
    LinearSpec spec_;
};

NormOf norm_of(const Arguments& args) { // where kernels/program.py, fuse, has moved one here
    if (!args.has("norm")) return {};
    return {.kind = args.flag("norm.layer") ? NormKind::Layer : NormKind::Rms,
            .gain = args.floats("norm.gain"),
            .bias = args.floats("norm.bias"),
            .eps = args.number("norm.eps")};
}

// Parts of one layout each, side by side.
void make_parts(const Call& c, Program& p) {
    LinearSpec spec{.x = c.inputs.at(0),
                    .y = c.output,
                    .has_residual = c.inputs.size() > 1,
                    .residual = c.inputs.back(),
                    .norm = norm_of(c.args),
                    .activation = c.args.choice<Activation>("activation"),
                    .scale = c.args.number("scaling.factor"),
                    .softcap = c.args.number("scaling.softcap"),
                    .prepared = c.workspace};
    const float* bias = c.args.floats("bias");
    for (const Weights& part : c.args.weights("weight")) {
        spec.weight = part;
        spec.bias = bias ? bias + spec.column : nullptr;
        p.add(screens(spec) ? make_head(spec, p.limits()) : make_linear(spec));
        spec.column += part->view.n;
    }
}

size_t workspace(const Arguments& args, int64_t rows) {
    size_t most = 0;
    for (const Weights& part : args.weights("weight"))
        most = std::max(most, activation_bytes(part->view.layout, rows, part->view.k));
    return most;
}

const OpType kLinear{"linear", make_parts, workspace};

} // namespace

size_t linear_scratch_bytes(const Kernels& k, const Matrix& w) {
    return static_cast<size_t>(std::max(w.k * 8, k.linear_scratch(w)));
}

std::unique_ptr<Op> make_linear(LinearSpec spec) { return std::make_unique<Linear>(std::move(spec)); }

} // namespace octavo
