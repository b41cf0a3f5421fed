// Mixture of experts: route, then all chosen experts at once, each on its own tokens.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ops.h"
#include "routing.h"

namespace octavo {
namespace {

struct MoeSpec {
    Buffer x{}, router{}, y{};
    std::vector<Weights> gate_up, down;
    int64_t top_k = 1;
    Activation activation = Activation::None;
    bool renormalize = false;
    Routing routing{};
    int64_t workspace = 0; // arena offset
};

int tile_of(const Kernels& k, const Matrix& m) { return is_quantized(m.layout) ? k.tile_int8 : k.tile_float; }
size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

// Workspace: the chosen experts and their shares per token, then per routed row (token and expert, grouped by
// expert): prepared x, hidden, prepared hidden, output.
struct Layouts {
    size_t experts, shares, x, hidden, prepared, output, total;
};

Layouts layouts(const MoeSpec& s, int64_t tokens) {
    const Matrix& up = s.gate_up[0]->view;
    const Matrix& down = s.down[0]->view;
    const int64_t rows = tokens * s.top_k, experts = static_cast<int64_t>(s.gate_up.size());
    Layouts l{};
    size_t at = 0;
    auto take = [&](size_t bytes) {
        const size_t here = at;
        at += aligned(bytes);
        return here;
    };
    // Prepared activations start anew for each expert, at a 64-byte boundary of each of their arrays.
    const size_t slack = static_cast<size_t>(experts) * 256;
    l.experts = take(static_cast<size_t>(rows) * 4);
    l.shares = take(static_cast<size_t>(rows) * 4);
    l.x = take(activation_bytes(up.layout, rows, up.k) + slack);
    l.hidden = take(static_cast<size_t>(rows * down.k) * 4);
    l.prepared = take(activation_bytes(down.layout, rows, down.k) + slack);
    l.output = take(static_cast<size_t>(rows * down.n) * 4);
    l.total = at;
    return l;
}

class Moe : public Op {
public:
    explicit Moe(MoeSpec spec) : spec_(std::move(spec)) {}

    enum Phase { Route, Group, PrepareX, Up, PrepareHidden, Down, Combine, Count };
    int phases() const override { return Count; }
    size_t scratch_bytes(const Kernels& k) const override {
        return std::max({linear_scratch_bytes(k, spec_.gate_up[0]->view), linear_scratch_bytes(k, spec_.down[0]->view),
                         RoutingRoom::bytes(experts())});
    }
    int64_t units(const Step& s, int phase) const override {
        const int64_t tokens = s.rows(spec_.x.rows), rows = tokens * spec_.top_k;
        if (tokens == 0) return 0;
        switch (phase) {
        case Route:
        case Combine: return tokens;
        case Group: return 1;
        case PrepareX:
        case PrepareHidden: return rows;
        case Up: return static_cast<int64_t>(active_.size()) * spec_.gate_up[0]->view.panels;
        default: return static_cast<int64_t>(active_.size()) * spec_.down[0]->view.panels;
        }
    }
    void begin(const Step& s) override {
        at_ = layouts(spec_, s.rows(spec_.x.rows));
        memory_ = s.arena + spec_.workspace;
    }
    void run(const Step& s, int phase, int64_t begin, int64_t end, int thread) override {
        switch (phase) {
        case Route:
            for (int64_t t = begin; t < end; t++) route(s, t, s.scratch_of(thread));
            return;
        case Group: return group(s);
        case PrepareX:
        case PrepareHidden: return prepare(s, phase == PrepareX, begin, end, s.scratch_of(thread));
        case Up:
        case Down: return linear(s, phase == Up, begin, end, s.scratch_of(thread));
        default:
            for (int64_t t = begin; t < end; t++) combine(s, t);
        }
    }

private:
    struct Expert { // one that some token chose
        int64_t number, first_row, count;
        size_t x_at, hidden_at; // bytes into the prepared arrays
    };

    int64_t experts() const { return static_cast<int64_t>(spec_.gate_up.size()); }
    int32_t* chosen(int64_t t) const { return reinterpret_cast<int32_t*>(memory_ + at_.experts) + t * spec_.top_k; }
    float* shares(int64_t t) const { return reinterpret_cast<float*>(memory_ + at_.shares) + t * spec_.top_k; }

    // The top_k experts of a token, ascending by number, with their shares.
    void route(const Step& s, int64_t t, float* scratch) const {
        const RoutingRoom room(scratch, experts());
        (spec_.routing.sigmoid ? s.kernels->sigmoid : s.kernels->softmax)(s.row(spec_.router, t), room.p, experts());
        choose_experts(spec_.routing, room, experts(), spec_.top_k, spec_.renormalize, chosen(t), shares(t));
    }

    void group(const Step& s) {
        const int64_t tokens = s.rows(spec_.x.rows);
        const Matrix& up = spec_.gate_up[0]->view;
        const Matrix& down = spec_.down[0]->view;
        active_.clear();
        token_of_.clear();
        expert_of_.clear();
        row_of_.assign(static_cast<size_t>(tokens * spec_.top_k), 0);
        size_t x_at = 0, hidden_at = 0;
        for (int64_t e = 0; e < experts(); e++) {
            Expert x{e, static_cast<int64_t>(token_of_.size()), 0, x_at, hidden_at};
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t i = 0; i < spec_.top_k; i++)
                    if (chosen(t)[i] == e) {
                        row_of_[static_cast<size_t>(t * spec_.top_k + i)] = static_cast<int64_t>(token_of_.size());
                        token_of_.push_back(static_cast<int32_t>(t));
                        expert_of_.push_back(static_cast<int32_t>(active_.size()));
                        x.count++;
                    }
            if (x.count == 0) continue;
            x_at += activation_bytes(up.layout, x.count, up.k);
            hidden_at += activation_bytes(down.layout, x.count, down.k);
            active_.push_back(x);
        }
    }

    Activations activations(const Step& s, const Expert& e, bool first) const {
        const Matrix& w = first ? spec_.gate_up[0]->view : spec_.down[0]->view;
        uint8_t* memory = memory_ + (first ? at_.x + e.x_at : at_.prepared + e.hidden_at);
        return activations_at(memory, w.layout, e.count, w.k, tile_of(*s.kernels, w));
    }

    void prepare(const Step& s, bool first, int64_t begin, int64_t end, float* scratch) const {
        while (begin < end) {
            const Expert& e = active_[static_cast<size_t>(expert_of_[static_cast<size_t>(begin)])];
            const int64_t stop = std::min(end, e.first_row + e.count), width = spec_.down[0]->view.k;
            const float* hidden = reinterpret_cast<float*>(memory_ + at_.hidden) + e.first_row * width;
            const PrepareArgs args{.x = first ? s.at(spec_.x) : hidden,
                                   .rows = first ? token_of_.data() + e.first_row : nullptr,
                                   .order = (first ? spec_.gate_up : spec_.down)[static_cast<size_t>(e.number)]->view.order,
                                   .to = activations(s, e, first)};
            s.kernels->prepare(args, begin - e.first_row, stop - e.first_row, scratch);
            begin = stop;
        }
    }

    void linear(const Step& s, bool first, int64_t begin, int64_t end, float* scratch) const {
        const auto& weights = first ? spec_.gate_up : spec_.down;
        const int64_t panels = weights[0]->view.panels;
        while (begin < end) {
            const Expert& e = active_[static_cast<size_t>(begin / panels)];
            const int64_t base = begin / panels * panels, stop = std::min(end, base + panels);
            const Matrix& w = weights[static_cast<size_t>(e.number)]->view;
            const int64_t width = first ? spec_.down[0]->view.k : w.n;
            float* y = reinterpret_cast<float*>(memory_ + (first ? at_.hidden : at_.output)) + e.first_row * width;
            const Activations a = activations(s, e, first);
            const LinearArgs args{.w = w,
                                  .a = a,
                                  .activation = first ? spec_.activation : Activation::None,
                                  .y = y,
                                  .y_stride = width,
                                  .scratch = reinterpret_cast<uint8_t*>(scratch),
                                  .near = a.m == 1 && asks_near()};
            s.kernels->linear(args, begin - base, stop - base);
            begin = stop;
        }
    }

    void combine(const Step& s, int64_t t) const {
        const int64_t width = spec_.y.width;
        float* y = s.row(spec_.y, t);
        std::memset(y, 0, static_cast<size_t>(width) * 4);
        for (int64_t i = 0; i < spec_.top_k; i++) {
            const int64_t row = row_of_[static_cast<size_t>(t * spec_.top_k + i)];
            s.kernels->axpy(reinterpret_cast<float*>(memory_ + at_.output) + row * width, shares(t)[i], y, width);
        }
    }

    MoeSpec spec_;
    Layouts at_{};
    uint8_t* memory_ = nullptr;
    std::vector<Expert> active_;
    std::vector<int32_t> token_of_, expert_of_; // of each routed row
    std::vector<int64_t> row_of_;               // of token t's i-th expert
};

// Without its buffers. Throws std::invalid_argument where the experts are not alike.
MoeSpec spec_of(const Arguments& args) {
    MoeSpec spec{.gate_up = args.weights("experts.gate_up"),
                 .down = args.weights("experts.down"),
                 .top_k = args.integer("top_k"),
                 .activation = args.choice<Activation>("experts.activation"),
                 .renormalize = args.flag("renormalize")};
    if (spec.gate_up.empty() || spec.gate_up.size() != spec.down.size())
        throw std::invalid_argument("each expert has gate_up and down");
    auto same = [](const Matrix& a, const Matrix& b) {
        return a.n == b.n && a.k == b.k && a.layout == b.layout && a.gated == b.gated;
    };
    for (size_t i = 0; i < spec.gate_up.size(); i++)
        if (!same(spec.gate_up[0]->view, spec.gate_up[i]->view) || !same(spec.down[0]->view, spec.down[i]->view))
            throw std::invalid_argument("experts must have one shape and layout");
    if (!args.has("routing")) return spec;
    spec.routing = {.sigmoid = args.flag("routing.sigmoid"),
                    .bias = args.floats("routing.bias"),
                    .groups = args.integer("routing.groups"),
                    .top_groups = args.integer("routing.top_groups"),
                    .group_top = args.integer("routing.group_top"),
                    .scale = args.number("routing.scale")};
    return spec;
}

void make(const Call& c, Program& p) {
    MoeSpec spec = spec_of(c.args);
    check_routing(spec.routing, static_cast<int64_t>(spec.gate_up.size()), spec.top_k);
    spec.x = c.inputs.at(0);
    spec.router = c.inputs.at(1);
    spec.y = c.output;
    spec.workspace = c.workspace;
    p.add(std::make_unique<Moe>(std::move(spec)));
}

const OpType kMoe{"moe", make, [](const Arguments& args, int64_t rows) { return layouts(spec_of(args), rows).total; }};

} // namespace
} // namespace octavo
