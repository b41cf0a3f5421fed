#include "top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace octavo {
namespace {

bool better(const Entry& a, const Entry& b) {
    return a.value > b.value || (std::isnan(a.value) && !std::isnan(b.value));
}

// Fills the hole at `top` of a heap, the worst on top: down to a leaf by the worse child, then up to the entry's place.
void sift(Entry* heap, int64_t size, int64_t top, Entry entry) {
    int64_t hole = top;
    while (2 * hole + 1 < size) {
        int64_t child = 2 * hole + 2;
        if (child == size || better(heap[child], heap[child - 1])) child--;
        heap[hole] = heap[child];
        hole = child;
    }
    for (int64_t parent = (hole - 1) / 2; hole > top && better(heap[parent], entry); parent = (hole - 1) / 2) {
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = entry;
}

// The best k of a[0..n) into a[0..k).
void heap_select(Entry* a, int64_t n, int64_t k) {
    for (int64_t hole = k / 2 - 1; hole >= 0; hole--) sift(a, k, hole, a[hole]);
    for (int64_t i = k; i < n; i++)
        if (better(a[i], a[0])) {
            const Entry entry = a[i];
            a[i] = a[0];
            sift(a, k, 0, entry);
        }
}

// Splits [first, last) around a median of three, which goes to the front; where the worse part begins.
int64_t partition(Entry* a, int64_t first, int64_t last) {
    const int64_t x = first + 1, y = first + (last - first) / 2, z = last - 1;
    const int64_t median = better(a[x], a[y]) ? (better(a[y], a[z]) ? y : better(a[x], a[z]) ? z : x)
                                              : (better(a[x], a[z]) ? x : better(a[y], a[z]) ? z : y);
    std::swap(a[first], a[median]);
    int64_t left = first + 1, right = last - 1;
    for (;; left++, right--) { // equals of the pivot stop both sides, and change places
        while (better(a[left], a[first])) left++;
        while (better(a[first], a[right])) right--;
        if (left >= right) return left;
        std::swap(a[left], a[right]);
    }
}

// Puts the nth of the order at its place, and what is not worse before it.
void quickselect(Entry* a, int64_t n, int64_t nth) {
    int64_t first = 0, last = n, depth = 2 * (std::bit_width(static_cast<uint64_t>(n)) - 1);
    for (; last - first > 3; depth--) {
        if (depth == 0) return heap_select(a + first, last - first, nth + 1 - first);
        const int64_t cut = partition(a, first, last);
        (cut <= nth ? first : last) = cut;
    }
    for (int64_t i = first + 1; i < last; i++)
        for (int64_t j = i; j > first && better(a[j], a[j - 1]); j--) std::swap(a[j], a[j - 1]);
}

} // namespace

void best_first(const float* x, int64_t n, int64_t k, Entry* room) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const Entry entry{x[i], static_cast<int32_t>(i)};
        if (kept == k && !better(entry, room[k - 1])) continue;
        int64_t at = kept < k ? kept++ : k - 1;
        for (; at > 0 && better(entry, room[at - 1]); at--) room[at] = room[at - 1];
        room[at] = entry;
    }
}

void top_k(const float* x, int64_t n, int64_t k, Entry* room, int32_t* pick) {
    best_first(x, n, std::min(k + 1, n), room);
    if (k < n && !better(room[k - 1], room[k])) { // equals at the border
        for (int64_t i = 0; i < n; i++) room[i] = {x[i], static_cast<int32_t>(i)};
        64 * k <= n ? heap_select(room, n, k) : quickselect(room, n, k - 1);
    }
    for (int64_t i = 0; i < k; i++) pick[i] = room[i].index;
    std::sort(pick, pick + k);
}

} // namespace octavo
