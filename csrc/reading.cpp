#include "reading.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

namespace octavo {
namespace {

// Of one thread, on a line of its own: threads that count on one line wait for it as long as for memory.
struct alignas(64) Found {
    std::atomic<int64_t> bytes{0};
    std::atomic<uint64_t> folded{0}; // so that no read is left out
};
std::array<Found, 256> all_found; // of more threads than that, some share one
std::atomic<size_t> threads{0};

Found& found_here() {
    thread_local Found& mine = all_found[threads.fetch_add(1) % all_found.size()];
    return mine;
}

// Lines, each asking for the one AHEAD bytes later; the last ones for the first of what the thread is likely to go on
// with, if that is known.
template <int64_t AHEAD> void read(const uint8_t* from, int64_t bytes, const uint8_t* then) {
    using Word = uint64_t __attribute__((vector_size(16)));
    constexpr int64_t kLine = 64;
    Word sums[4]{};
    for (int64_t i = 0; i < bytes; i += kLine) {
        const auto* line = reinterpret_cast<const Word*>(from + i);
        for (int word = 0; word < 4; word++) sums[word] ^= line[word];
        if (AHEAD == 0) continue;
        const int64_t later = i + AHEAD;
        __builtin_prefetch(later < bytes || !then ? from + later : then + later - bytes, 0, 2);
    }
    const Word all = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
    Found& found = found_here();
    found.folded.fetch_xor(all[0] ^ all[1], std::memory_order_relaxed);
    found.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

// A number for each row of the panels.
void read_numbers(const float* numbers, int64_t begin, int64_t end) {
    if (numbers) read<0>(reinterpret_cast<const uint8_t*>(numbers + begin * kPanel), (end - begin) * kPanel * 4, nullptr);
}

// What every product reads. Of a head that is cut in two the rest lies apart: the low bits, or for screening the fifth ones.
template <int64_t AHEAD> void read_weight(const Matrix& w, const uint8_t* rest, int64_t rest_bytes, const uint8_t* then, int64_t begin, int64_t end) {
    read<AHEAD>(w.data + begin * w.panel_bytes, (end - begin) * w.panel_bytes, then);
    if (rest) read<AHEAD>(rest + begin * rest_bytes, (end - begin) * rest_bytes, nullptr);
    read_numbers(w.units, begin, end);
}

template <int64_t AHEAD> void read_panels(const LinearArgs& a, int64_t begin, int64_t end) {
    read_weight<AHEAD>(a.w, a.w.low, a.w.k / kBlock * kLowBytes, a.upcoming, begin, end);
}

template <int64_t AHEAD> void read_high_bits(const ScreenArgs& a, int64_t begin, int64_t end) {
    read_weight<AHEAD>(a.w, a.w.fifth, a.w.k / kBlock * kFifthBytes, a.upcoming, begin, end);
    for (const float* each : {a.errors, a.along}) read_numbers(each, begin, end);
    for (int64_t m = 0; m < a.a.m; m++)
        for (int64_t p = begin; p < end; p++) a.upper[m * a.w.panels + p] = p == 0 ? 0.0f : -1e30f;
}

const uint8_t* part_of(const AttentionArgs& a, const AttentionItem& item, int64_t page) {
    return head_of(a.kv, a.page_tables[item.sequence * a.table_width + page], item.head);
}

int64_t first_page(const AttentionArgs& a, const AttentionItem& item) {
    const int64_t seen = a.window ? a.positions[item.t0] - a.window + 1 : 0;
    return page_number(a.kv, std::max(item.c0 * kSplit, seen));
}

// A head's parts of the pages that an item sees, at once as long as they lie one after the other.
template <int64_t AHEAD> void read_pages(const AttentionArgs& a, const AttentionItem& item, float*) {
    const int64_t seen = a.causal ? a.positions[item.t1 - 1] + 1 : a.context_lens[item.sequence];
    const int64_t last = page_number(a.kv, std::min(seen, item.c1 * kSplit) - 1), stride = a.kv.page_stride;
    for (int64_t page = first_page(a, item), next; page <= last; page = next) {
        const uint8_t *from = part_of(a, item, page), *then = nullptr;
        for (next = page + 1; next <= last && part_of(a, item, next) == from + (next - page) * stride;) next++;
        if (next <= last) then = part_of(a, item, next);
        else if (item.soon) then = part_of(a, *item.soon, first_page(a, *item.soon));
        read<AHEAD>(from, (next - page) * stride, then);
    }
}

template <int64_t AHEAD> Kernels only_read(Kernels kernels) {
    kernels.prepare = [](const PrepareArgs&, int64_t, int64_t, float*) {};
    kernels.linear = read_panels<AHEAD>;
    kernels.screen = read_high_bits<AHEAD>;
    kernels.attention = read_pages<AHEAD>;
    // Whatever lies where activations would: a head that screens finds what its first panel holds, as with narrow bounds.
    kernels.screen_row = [](const int8_t*, const float*, const ScreenBounds&, int64_t, int64_t, int32_t*, float* part, float* norm) {
        *part = 0.0f, *norm = 1.0f;
    };
    kernels.row_product = [](const Matrix&, int64_t, const int8_t*, const float*) { return 0.0f; };
    return kernels;
}

template <size_t... WAY> Kernels of_way(const Kernels& kernels, int64_t ahead, std::index_sequence<WAY...>) {
    Kernels found = kernels;
    const bool known = ((ahead == kReadingAhead[WAY] && (found = only_read<kReadingAhead[WAY]>(kernels), true)) || ...);
    if (!known) throw std::invalid_argument("nobody reads so many bytes ahead");
    return found;
}

} // namespace

Kernels reading(const Kernels& kernels, int64_t ahead) {
    return of_way(kernels, ahead, std::make_index_sequence<kReadingAhead.size()>());
}

int64_t bytes_read() {
    int64_t sum = 0;
    for (const Found& each : all_found) sum += each.bytes.load(std::memory_order_relaxed);
    return sum;
}

} // namespace octavo
