#include "kv.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <stdexcept>

namespace octavo {
namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t checked(int64_t n, const char* what) {
    if (n < 1) throw std::invalid_argument(what);
    return n;
}

// Where the elements of one slot lie in a page's keys or values: of dimension i at begin + i / run * step + i % run; a last
// dimension beyond whole runs follows at last.
struct Strides {
    int64_t begin, run, step, last;

    int64_t at(int64_t i, int64_t n) const { return run > 1 && i == n - 1 && n % run ? last : begin + i / run * step + i % run; }
};

// Of keys [d][page_size]; of integers in pairs [d / 2][page_size][2] (KVView).
Strides key_strides(const KVView& v, int64_t offset) {
    if (!is_integer(v.type)) return {.begin = offset, .run = 1, .step = v.page_size, .last = 0};
    return {.begin = 2 * offset, .run = 2, .step = 2 * v.page_size, .last = (v.d - 1) * v.page_size + offset};
}

// Of values [page_size][dv]; of integers in pairs [page_size / 2][dv][2].
Strides value_strides(const KVView& v, int64_t offset) {
    const int64_t even = offset / 2 * 2;
    if (!is_integer(v.type) || even + 1 == v.page_size) return {.begin = offset * v.dv, .run = 1, .step = 1, .last = 0};
    return {.begin = even * v.dv + offset % 2, .run = 1, .step = 2, .last = 0};
}

void move_side(uint8_t* to, const uint8_t* from, int64_t n, int64_t size, const Strides& target, const Strides& source) {
    for (int64_t i = 0; i < n; i++)
        std::memcpy(to + target.at(i, n) * size, from + source.at(i, n) * size, static_cast<size_t>(size));
}

void move_slot(const KVView& v, int64_t from, int64_t to) {
    const int64_t size = element_size(v.type), source = from % v.page_size, target = to % v.page_size;
    for (int64_t h = 0; h < v.heads; h++) {
        const uint8_t* a = head_of(v, from / v.page_size, h);
        uint8_t* b = head_of(v, to / v.page_size, h);
        move_side(b, a, v.d, size, key_strides(v, target), key_strides(v, source));
        if (!v.latent) move_side(b + v.v_at, a + v.v_at, v.dv, size, value_strides(v, target), value_strides(v, source));
        if (!is_integer(v.type)) continue;
        std::memcpy(b + v.ks_at + target * 4, a + v.ks_at + source * 4, 4);
        if (!v.latent) std::memcpy(b + v.vs_at + target * 4, a + v.vs_at + source * 4, 4);
    }
}

// Of 2; -1: n is none.
int64_t power(int64_t n) {
    const auto bits = static_cast<uint64_t>(n);
    return std::has_single_bit(bits) ? std::countr_zero(bits) : -1;
}

// Where a page's parts lie in the layers' order; returns its bytes.
int64_t plan(const std::vector<KVShape>& layers, int64_t page_size, std::vector<KVView>& views) {
    int64_t at = 0;
    for (const KVShape& s : layers) {
        if (s.heads < 1 || s.d < 1 || s.dv < 1) throw std::invalid_argument("a KV layer needs heads and dimensions");
        if (s.latent && s.dv > s.d) throw std::invalid_argument("a latent is part of its key");
        if (is_integer(s.type) && (s.d > 1024 || s.dv > 1024))
            throw std::invalid_argument("integer pages hold heads of at most 1024 dimensions");
        const int64_t size = element_size(s.type);
        KVView v{};
        v.page_size = page_size;
        v.page_bits = power(page_size);
        v.heads = s.heads;
        v.d = s.d;
        v.dv = s.dv;
        v.type = s.type;
        v.latent = s.latent;
        v.layer_at = at;
        const int64_t scales = is_integer(s.type) ? page_size * 4 : 0;
        v.ks_at = round_up(s.d * page_size * size, 4);
        v.head_stride = v.ks_at + scales;
        v.vs_at = v.ks_at;
        if (!s.latent) {
            v.v_at = v.head_stride;
            v.vs_at = round_up(v.v_at + s.dv * page_size * size, 4);
            v.head_stride = v.vs_at + scales;
        }
        at += s.heads * v.head_stride;
        views.push_back(v);
    }
    return at;
}

// Long enough that memory is read at nearly the rate of one endless stream, short enough that the first page, with
// which the system gives the memory of its whole run, takes some megabytes; of a small cache an eighth, which is what
// the last run, of which not all pages need be there, may take beyond the pages.
constexpr int64_t kRunBytes = int64_t{128} << 10, kRuns = 8;
int64_t run_bits(const std::vector<KVView>& layers, int64_t num_pages) {
    int64_t longest = 1, bits = 0;
    for (const KVView& v : layers) longest = std::max(longest, v.head_stride);
    while ((longest << bits) < kRunBytes && (kRuns << (bits + 1)) <= num_pages) bits++;
    return bits;
}

// f(place in a page's bytes, place in memory, bytes) of each layer's heads.
template <class F> void each_part(const std::vector<KVView>& layers, int64_t page, const F& f) {
    int64_t at = 0;
    for (const KVView& v : layers)
        for (int64_t h = 0; h < v.heads; h++, at += v.page_stride)
            f(at, head_of(v, page, h), static_cast<size_t>(v.page_stride));
}

} // namespace

KVCache::KVCache(const std::vector<KVShape>& layers, int64_t num_pages, int64_t page_size, bool sliding)
    : num_pages_(checked(num_pages, "a KV cache has at least one page")), sliding_(sliding),
      page_bytes_(plan(layers, checked(page_size, "a page has at least one slot"), layers_)),
      run_bits_(run_bits(layers_, num_pages)),
      region_(static_cast<size_t>(round_up(num_pages, int64_t{1} << run_bits_) * page_bytes_), true) {
    for (KVView& v : layers_) {
        v.base = region_.data();
        v.num_pages = num_pages;
        v.run_bits = run_bits_;
        v.run_stride = page_bytes_ << run_bits_;
        v.page_stride = v.head_stride;
        v.layer_at <<= run_bits_;
        v.head_stride <<= run_bits_;
    }
}

void KVCache::read_page(int64_t page, uint8_t* to) const {
    if (page < 0 || page >= num_pages_) throw std::invalid_argument("a page to read lies outside the cache");
    each_part(layers_, page, [&](int64_t at, const uint8_t* here, size_t n) { std::memcpy(to + at, here, n); });
}

void KVCache::write_page(int64_t page, const uint8_t* from) {
    if (page < 0 || page >= num_pages_) throw std::invalid_argument("a page to write lies outside the cache");
    each_part(layers_, page, [&](int64_t at, uint8_t* here, size_t n) { std::memcpy(here, from + at, n); });
}

void KVCache::check_slots(const BatchView& b, const KVView& kv) const {
    const int32_t* at = slots(b);
    if (!at) throw std::invalid_argument("the batch lacks the pages of layers with a window");
    for (int64_t t = 0; t < b.tokens; t++)
        if (at[t] < 0 || at[t] >= kv.num_pages * kv.page_size)
            throw std::invalid_argument("a slot lies outside the KV cache");
}

void KVCache::copy_pages(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
    std::set<int64_t> targets;
    for (auto [from, to] : pairs) {
        if (from < 0 || to < 0 || from >= num_pages_ || to >= num_pages_)
            throw std::invalid_argument("a page to copy lies outside the cache");
        targets.insert(to);
    }
    bool overlap = false;
    for (auto [from, to] : pairs) overlap |= targets.count(from) > 0;
    const size_t bytes = static_cast<size_t>(page_bytes_);
    if (!overlap) {
        for (auto [from, to] : pairs)
            for (const KVView& v : layers_)
                for (int64_t h = 0; h < v.heads; h++)
                    std::memcpy(head_of(v, to, h), head_of(v, from, h), static_cast<size_t>(v.page_stride));
        return;
    }
    std::vector<uint8_t> read(bytes * pairs.size());
    for (size_t i = 0; i < pairs.size(); i++) read_page(pairs[i].first, read.data() + i * bytes);
    for (size_t i = 0; i < pairs.size(); i++) write_page(pairs[i].second, read.data() + i * bytes);
}

void KVCache::move_slots(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
    const int64_t slots = num_pages_ * layers_.front().page_size;
    for (auto [from, to] : pairs)
        if (from < 0 || to < 0 || from >= slots || to >= slots)
            throw std::invalid_argument("a slot to move lies outside the cache");
    for (auto [from, to] : pairs)
        for (const KVView& v : layers_) move_slot(v, from, to);
}

} // namespace octavo
