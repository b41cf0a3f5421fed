// Attention: cutting a batch into items for the pool.
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <stdexcept>
#include <utility>

#include "ops.h"

namespace octavo {

constexpr int64_t kItems = 12, kFewRows = 48; // items of each thread that are aimed at; rows below which none is cut
constexpr int64_t kRanges = 8; // of items claimed together, for each thread, were there no shorter ones at the end
constexpr int64_t kCached = 128; // positions that are read or asked for at a time by few rows: in three quarters of a cache
constexpr int64_t kPieces = 6; // of long sequences, for each thread: few pieces are long streams, many end together

// The position of the first token of a step.
static int64_t tree_start(const BatchView& b, int64_t s) {
    return b.context_lens[s] - (b.query_start[s + 1] - b.query_start[s]);
}

struct AttentionOpSpec {
    Buffer q, y;
    KVLayer layer;
    int64_t heads = 1;
    float scale = 1.0f, softcap = 0.0f;
    int64_t window = 0;
    const float* slopes = nullptr;
    const float* sinks = nullptr;
    Sight sight = Sight::Causal;
    std::vector<float> bias{}; // AttentionArgs.bias; empty: none
    int64_t reach = 0;
    bool sampled_only = false; // nobody reads other rows, so they stay as they are
};

// The items of one replay, for every layer of one geometry. A few long sequences are cut at their
// splits, so that all threads find work; many are not, which saves merging. The kernel adds in the
// same order either way.
class AttentionPlan {
public:
    AttentionPlan(const AttentionOpSpec& spec, const Limits& limits, int threads)
        : kv_(spec.layer.view()), group_(spec.heads / kv_.heads), window_(spec.window),
          sight_(spec.sight), sampled_only_(spec.sampled_only), max_items_(4 * threads), max_splits_((limits.table_width * kv_.page_size + kSplit - 1) / kSplit) {}

    void begin(const Step& step) {
        if (serial_ == step.serial) return;
        serial_ = step.serial;
        items_.clear();
        groups_.clear();
        const BatchView& b = step.batch;
        rows_ = std::max<int64_t>(step.kernels->attention_rows, group_);
        const int64_t fair = tokens_of(b, step.threads);
        if (sampled_only_) {
            sampled_.assign(static_cast<size_t>(b.tokens), false);
            for (int64_t r = 0; r < b.sampled_rows; r++) sampled_[static_cast<size_t>(b.sampled[r])] = true;
        }
        // Late tokens see most: they come first, so that no thread is left with a long one at the end.
        for (int64_t s = 0; s < b.sequences; s++)
            for (int64_t end = b.query_start[s + 1]; end > b.query_start[s]; end -= fair) {
                const auto [t0, t1] = wanted(std::max<int64_t>(b.query_start[s], end - fair), end);
                for (int64_t head = 0; t0 < t1 && head < kv_.heads; head++) items_.push_back(whole_item(b, s, head, t0, t1));
            }
        cut_ = static_cast<int64_t>(items_.size()) < max_items_ && step.threads > 1;
        if (cut_) cut(step.threads);
        deal(step.threads);
    }

    int64_t size() const { return static_cast<int64_t>(items_.size()); }
    const std::vector<int>& ranges() const { return ends_; }
    // Items that were cut are of one length, each a range.
    bool alike() const { return cut_; }
    const AttentionItem& item(int64_t i) const { return items_[static_cast<size_t>(i)]; }

    // True for the thread that finishes the last split of an item's rows: it merges them.
    bool finished(int64_t i) {
        Group& g = groups_[static_cast<size_t>(group_of_[static_cast<size_t>(i)])];
        return (g.done.fetch_add(1, std::memory_order_acq_rel) + 1) % g.pieces == 0;
    }

    size_t scratch_bytes(const Kernels& k) const {
        return static_cast<size_t>(k.attention_scratch(std::max<int64_t>(k.attention_rows, group_), kv_.d, kv_.dv));
    }

private:
    struct Group {
        explicit Group(int64_t n) : pieces(n) {}
        int64_t pieces;
        std::atomic<int64_t> done{0};
    };

    // Tokens of an item: many share what is read and widened, but all threads should end together.
    int64_t tokens_of(const BatchView& b, int threads) const {
        const int64_t most = std::max<int64_t>(1, rows_ / group_), fair = b.tokens * kv_.heads / (kItems * threads);
        return std::clamp<int64_t>(fair, std::min<int64_t>(most, std::max<int64_t>(1, kFewRows / group_)), most);
    }

    // From the first to the last of the tokens that anyone reads.
    std::pair<int64_t, int64_t> wanted(int64_t t0, int64_t t1) const {
        while (sampled_only_ && t0 < t1 && !sampled_[static_cast<size_t>(t0)]) t0++;
        while (sampled_only_ && t0 < t1 && !sampled_[static_cast<size_t>(t1 - 1)]) t1--;
        return {t0, t1};
    }

    AttentionItem whole_item(const BatchView& b, int64_t s, int64_t head, int64_t t0, int64_t t1) const {
        if (sight_ != Sight::Causal) {
            const int64_t length = (sight_ == Sight::Cross ? b.cross_lens : b.context_lens)[s];
            return {.sequence = s, .head = head, .t0 = t0, .t1 = t1, .c0 = 0, .c1 = (length + kSplit - 1) / kSplit};
        }
        const int64_t tree = is_tree(b, s) ? tree_start(b, s) : INT64_MAX;
        int64_t low = INT32_MAX, high = 0;
        for (int64_t t = t0; t < t1; t++) {
            low = std::min<int64_t>(low, b.positions[t]);
            high = std::max<int64_t>(high, b.positions[t] + 1);
        }
        const int64_t first = window_ ? std::max<int64_t>(0, low - window_ + 1) / kSplit : 0;
        return {.sequence = s,
                .head = head,
                .t0 = t0,
                .t1 = t1,
                .c0 = first,
                .c1 = (high + kSplit - 1) / kSplit,
                .tree = tree};
    }

    void cut(int threads) {
        int64_t all = 0;
        for (const AttentionItem& whole : items_) all += whole.c1 - whole.c0;
        const int64_t run = std::max<int64_t>(1, all / (kPieces * threads)); // splits of a piece
        const int64_t stride = (kv_.dv + 15) / 16 * 16 + 16;
        if (!partials_)
            partials_ = std::make_unique<Region>(
                static_cast<size_t>(max_items_ * rows_ * max_splits_ * stride * 4), false);
        auto* at = reinterpret_cast<float*>(partials_->data());
        std::vector<AttentionItem> pieces;
        group_of_.clear();
        for (const AttentionItem& whole : items_) {
            const int64_t splits = whole.c1 - whole.c0;
            for (int64_t c = whole.c0; c < whole.c1; c += run) {
                AttentionItem piece = whole;
                piece.c0 = c;
                piece.c1 = std::min(whole.c1, c + run);
                piece.splits = splits;
                piece.first_split = whole.c0;
                piece.partial = splits > 1 ? at : nullptr;
                pieces.push_back(piece);
                group_of_.push_back(static_cast<int64_t>(groups_.size()));
            }
            groups_.emplace_back((splits + run - 1) / run);
            if (splits > 1) at += rows_ * splits * stride;
        }
        items_ = std::move(pieces);
    }

    // Ranges of like work at first, so that claims are few; the last ones of an item, so that all threads end together.
    void deal(int threads) {
        int64_t all = 0, seen = 0, since = 0;
        for (const AttentionItem& item : items_) all += item.c1 - item.c0;
        ends_.clear();
        for (size_t i = 0; i < items_.size(); i++) {
            since += items_[i].c1 - items_[i].c0;
            if (!cut_ && i + 1 < items_.size() && since * kRanges * threads < all && 4 * (seen + since) < 3 * all) continue;
            ends_.push_back(static_cast<int>(i + 1));
            seen += since, since = 0;
        }
        const int n = static_cast<int>(ends_.size()), shares = cut_ ? Shares::of(threads) : 1, apart = (threads + shares - 1) / shares;
        for (int share = 0; share < shares; share++)
            for (int r = Shares::first(n, shares, share), last = Shares::first(n, shares, share + 1); r < last; r++)
                look_ahead(r, r + apart < last ? r + apart : -1); // threads claim a share's ranges in turn, more or less
    }

    // What a thread goes on with after each item of range r, if next is the one that it claims then.
    void look_ahead(int r, int next) {
        const auto begin_of = [&](int range) { return static_cast<size_t>(range ? ends_[static_cast<size_t>(range - 1)] : 0); };
        const size_t end = begin_of(r + 1);
        for (size_t i = begin_of(r); i < end; i++)
            items_[i].soon = i + 1 < end ? &items_[i + 1] : next < 0 ? nullptr : &items_[begin_of(next)];
    }

    KVView kv_;
    int64_t group_, window_;
    Sight sight_;
    bool sampled_only_;
    std::vector<bool> sampled_; // of the step's tokens
    int64_t max_items_, max_splits_, rows_ = 0;
    bool cut_ = false;
    int64_t serial_ = -1;
    std::vector<AttentionItem> items_;
    std::vector<int> ends_;
    std::deque<Group> groups_; // never moved: atomics
    std::vector<int64_t> group_of_;
    std::unique_ptr<Region> partials_;
};

namespace {

class Attention : public Op {
public:
    Attention(AttentionOpSpec spec, std::shared_ptr<AttentionPlan> plan)
        : spec_(std::move(spec)), kv_(spec_.layer.view()),
          near_(4 * kCached * kv_.page_stride <= 3 * kv_.page_size * first_cache_bytes()), plan_(std::move(plan)) {}
    int64_t units(const Step&, int) const override { return plan_->size(); }
    const std::vector<int>* ranges() const override { return &plan_->ranges(); }
    bool alike() const override { return plan_->alike(); }
    size_t scratch_bytes(const Kernels& k) const override { return plan_->scratch_bytes(k); }
    void begin(const Step& s) override { plan_->begin(s); }
    void run(const Step& s, int, int64_t begin, int64_t end, int thread) override {
        const Seen seen = seen_of(s.batch);
        const AttentionArgs args{.q = s.at(spec_.q),
                                 .y = s.at(spec_.y),
                                 .kv = kv_,
                                 .heads = spec_.heads,
                                 .scale = spec_.scale,
                                 .softcap = spec_.softcap,
                                 .window = spec_.window,
                                 .slopes = spec_.slopes,
                                 .sinks = spec_.sinks,
                                 .positions = s.batch.positions,
                                 .context_lens = seen.lens,
                                 .page_tables = seen.tables,
                                 .table_width = seen.width,
                                 .causal = spec_.sight == Sight::Causal,
                                 .bias = spec_.bias.empty() ? nullptr : spec_.bias.data(),
                                 .reach = spec_.reach,
                                 .tree_masks = s.batch.tree_masks,
                                 .tree_words = s.batch.tree_words,
                                 .near = near_};
        for (int64_t i = begin; i < end; i++) {
            const AttentionItem& item = plan_->item(i);
            s.kernels->attention(args, item, s.scratch_of(thread));
            if (item.partial && plan_->finished(i)) merge(s, item);
        }
    }
    bool prefetches(int) const override { return true; }
    // The first pages that an item sees.
    void prefetch(const Step& s, int64_t unit) const override {
        const AttentionItem& item = plan_->item(unit);
        const Seen seen = seen_of(s.batch);
        const int64_t start = spec_.window ? s.batch.positions[item.t0] - spec_.window + 1 : 0;
        const int64_t first = page_number(kv_, std::max(start, item.c0 * kSplit));
        const int64_t last = page_number(kv_, std::min<int64_t>(seen.lens[item.sequence], item.c1 * kSplit) - 1);
        for (int64_t page = first, bytes = 0; page <= last && bytes < kFirstBytes; page++, bytes += kv_.page_stride)
            ask_for_bytes(head_of(kv_, seen.tables[item.sequence * seen.width + page], item.head), kv_.page_stride);
    }
    void check(const BatchView& b) const override {
        const Seen seen = seen_of(b);
        if (!seen.lens) throw std::invalid_argument("cross attention needs the encoder's pages");
        if (!seen.tables) throw std::invalid_argument("the batch lacks the pages of layers with a window");
        for (int64_t s = 0; s < b.sequences; s++) {
            if (spec_.sight == Sight::Cross && seen.lens[s] < 1) throw std::invalid_argument("an encoder input is empty");
            if (spec_.sight != Sight::Cross && is_tree(b, s)) check_tree(b, s);
            const int64_t pages = (seen.lens[s] + kv_.page_size - 1) / kv_.page_size;
            if (pages > seen.width) throw std::invalid_argument("a context is longer than its page table");
            for (int64_t p = 0; p < pages; p++) {
                const int32_t page = seen.tables[s * seen.width + p];
                if (page < 0 || page >= kv_.num_pages) throw std::invalid_argument("a page lies outside the KV cache");
            }
        }
    }

private:
    struct Seen { // whose pages are read: the sequence's own, or its encoder's
        const int32_t* lens;
        const int32_t* tables;
        int64_t width;
    };
    // A token sees as many of its step as its position says, all of which are there.
    void check_tree(const BatchView& b, int64_t s) const {
        if (spec_.sight != Sight::Causal) throw std::invalid_argument("only causal attention has trees");
        const int64_t start = b.query_start[s], count = b.query_start[s + 1] - start;
        for (int64_t t = start; t < start + count; t++) {
            int64_t seen = 0;
            for (int64_t i = 0; i < 64 * b.tree_words; i++) {
                if (!(b.tree_masks[t * b.tree_words + i / 64] >> i % 64 & 1)) continue;
                if (i >= count) throw std::invalid_argument("a tree mask names a token that its step lacks");
                seen++;
            }
            if (seen != b.positions[t] - tree_start(b, s) + 1)
                throw std::invalid_argument("a token's tree mask and its position disagree");
        }
    }
    Seen seen_of(const BatchView& b) const {
        if (spec_.sight == Sight::Cross) return {.lens = b.cross_lens, .tables = b.cross_tables, .width = b.cross_width};
        return {.lens = b.context_lens, .tables = spec_.layer.cache->tables(b), .width = b.table_width};
    }
    void merge(const Step& s, const AttentionItem& item) const {
        const int64_t group = spec_.heads / kv_.heads, stride = (kv_.dv + 15) / 16 * 16 + 16;
        for (int64_t r = 0; r < (item.t1 - item.t0) * group; r++) {
            const int64_t token = item.t0 + r / group, head = item.head * group + r % group;
            s.kernels->attention_merge(item.partial + r * item.splits * stride, item.splits, kv_.dv,
                                       spec_.sinks ? spec_.sinks + head : nullptr,
                                       s.at(spec_.y) + (token * spec_.heads + head) * kv_.dv);
        }
    }
    AttentionOpSpec spec_;
    KVView kv_;
    bool near_;
    std::shared_ptr<AttentionPlan> plan_;
};

// Layers of one geometry share the plan of each replay.
class AttentionPlans {
public:
    std::shared_ptr<AttentionPlan> of(const AttentionOpSpec& spec, const Program& p) {
        const KVView& kv = spec.layer.view();
        auto& plan = plans_[{spec.heads, kv.heads, kv.d, kv.dv, spec.window, kv.page_size, static_cast<int64_t>(spec.sight), spec.sampled_only}];
        if (!plan) plan = std::make_shared<AttentionPlan>(spec, p.limits(), p.threads());
        return plan;
    }

private:
    std::map<std::array<int64_t, 8>, std::shared_ptr<AttentionPlan>> plans_;
};

// [heads, 2 reach + 1] with its ends repeated, so that a block of positions is one load.
std::vector<float> padded(const Numbers& bias, int64_t reach) {
    std::vector<float> to;
    for (int64_t h = 0; h < bias.shape[0]; h++) {
        const float* row = bias.data + h * bias.shape[1];
        to.insert(to.end(), kRescale, row[0]);
        to.insert(to.end(), row, row + bias.shape[1]);
        to.insert(to.end(), kRescale, row[2 * reach]);
    }
    return to;
}

void make(const Call& c, Program& p) {
    AttentionOpSpec spec{.q = c.inputs.at(0),
                         .y = c.output,
                         .layer = c.args.layer("kv"),
                         .heads = c.args.integer("spec.num_heads"),
                         .scale = c.args.number("spec.scale"),
                         .softcap = c.args.number("spec.softcap"),
                         .window = c.args.integer("spec.window"),
                         .slopes = c.args.floats("spec.alibi_slopes"),
                         .sinks = c.args.floats("spec.sinks"),
                         .sight = c.args.choice<Sight>("spec.sight"),
                         .sampled_only = c.args.has("sampled_only")};
    const KVView& kv = spec.layer.view();
    if (spec.heads < 1 || spec.heads % kv.heads) throw std::invalid_argument("query heads must be a multiple of KV heads");
    if (kv.d > 1024 || kv.dv > 1024) throw std::invalid_argument("heads wider than 1024 are not supported");
    if (spec.sight != Sight::Causal && spec.window) throw std::invalid_argument("only causal attention has a window");
    if (const Numbers& bias = c.args.numbers("spec.relative_bias"); bias.data) {
        if (bias.shape.size() != 2 || bias.shape[0] != spec.heads || bias.shape[1] % 2 == 0)
            throw std::invalid_argument("a relative bias has a row a head, of odd length");
        spec.reach = bias.shape[1] / 2;
        spec.bias = padded(bias, spec.reach);
    }
    auto plan = p.shared<AttentionPlans>().of(spec, p);
    p.add(std::make_unique<Attention>(std::move(spec), std::move(plan)));
}

const OpType kAttention{"attention", make};

} // namespace
} // namespace octavo
