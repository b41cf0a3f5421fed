// y = epilogue(x W^T). A tile is one weight panel (16 rows) by one activation panel (C tokens).
//
// Per output and block of 32: the integer dot product is exact; then z = fma(dot, scale * d, z) and, with minima,
// z = fma(minimum, u, z). For U4 the minimum first and z = fma(dot * scale, d, z) last, as what takes integer
// scales rounds that product; blocks ascending. Nothing else decides an output's bits, so they depend neither on
// C nor on who computes the tile. (S8By16: two dot products and scales a block. U2 and U3: the products meet
// their steps as integers, steps.inl.)

// Zero points are minima of -scale z, which is exact: f16 has 11 bits and z at most 7.
//
// The instruction set's dot_*.inl gives dot_panel<C, U4 or U5 or U6 or C4 or S8 or S8By16, TABLES, MIN>, one of Tables and of Minima. K4 is met
// as U4 is, K5 as U5, K6 as S8By16 and C4 as S8: a step times its scale is exact, so they have the bits of f32 scales. Where it pays there are
// EXPANDED_U6, and EXPANDED_U4 and EXPANDED_U5 beside it, with expand_panel: panels in a form that costs more memory and less time for each token.

#include "steps.inl"

int64_t linear_scratch([[maybe_unused]] const Matrix& w) {
    if (w.layout == Layout::S8Cut) return w.k / kBlock * (PANELS_AT_ONCE * kJoinedBytes + kKeptBytes);
#ifdef EXPANDED_U4
    const bool one_level = w.layout == Layout::U4 || w.layout == Layout::U5;
    if (one_level || (has_steps(w.layout) && !is_few_bits(w.layout)))
        return w.k / kBlock * (EXPANDED_U4::bytes + 64 * (1 + (w.minima || w.layout == Layout::K6)));
#elif defined(EXPANDED_U6)
    if (w.layout == Layout::K6) return w.k / kBlock * (EXPANDED_U6::bytes + 64 * EXPANDED_U6::parts);
#endif
    return 0;
}

// Whether so many tokens, met at once, pay for expanding a panel. (With AVX-512 none do: docs/decisions/0036.)
bool expands([[maybe_unused]] const Matrix& w, [[maybe_unused]] int64_t tokens) {
#ifdef EXPANDED_U4
    switch (w.layout) {
    case Layout::U4:
    case Layout::K4: return tokens >= 24;
    case Layout::U5:
    case Layout::K5:
    case Layout::K6:
    case Layout::C4: return tokens >= 12;
    default: return false;
    }
#elif defined(EXPANDED_U6)
    return w.layout == Layout::K6 && tokens >= 24;
#else
    return false;
#endif
}

// P panels: more than one only where the instruction set's tiles take them (PANELS_AT_ONCE).
template <int C, int P, class W, int TABLES, int MIN>
SIMD void panels_of(const Matrix& w, int64_t group, const uint8_t* panel, const int8_t* q, const float* d, const float* u, const int32_t* sum, Ahead ahead, float* out) {
#if PANELS_AT_ONCE > 1
    dot_panel<C, W, TABLES, MIN, P>(panel, w.panel_bytes, q, d, u, sum, w.k / kBlock, group, ahead, out);
#else
    dot_panel<C, W, TABLES, MIN>(panel, q, d, u, sum, w.k / kBlock, group, ahead, out);
#endif
}

template <int C, int P> SIMD void tile_quantized(const Matrix& w, const uint8_t* panel, [[maybe_unused]] const float* units,
                                                 [[maybe_unused]] bool expanded, const Activations& a, int64_t start, Ahead ahead, float* out) {
    const int64_t blocks = w.k / kBlock, group = expanded ? 1 : w.group;
    const int8_t* q = a.q + start * w.k;
    const float* d = a.d + start * blocks;
    const float* u = a.u + start * blocks;
    const int32_t* sum = a.sum + start * blocks * a.parts;
#ifdef EXPANDED_U4
    if (units) {
#define PANEL(W)                                                                                                          \
    if (w.minima) dot_panel_in_units<C, W, kMinima>(panel, units, q, d, u, sum, blocks, group, ahead, out);                          \
    else dot_panel_in_units<C, W, kNoMinima>(panel, units, q, d, u, sum, blocks, group, ahead, out)
        if (expanded) { PANEL(EXPANDED_U4); }
        else if (w.zeros) dot_panel_in_units<C, U4, kZeros>(panel, units, q, d, u, sum, blocks, group, ahead, out);
        else { PANEL(U4); }
#undef PANEL
        return;
    }
#endif
#define PANEL(W, TABLES, MIN) panels_of<C, P, W, TABLES, MIN>(w, group, panel, q, d, u, sum, ahead, out)
#define NARROW_OR_WIDE(W, MIN)          \
    if (w.wide) PANEL(W, kSingle, MIN); \
    else PANEL(W, kHalf, MIN)
    if (expanded) {
        switch (w.layout) {
#ifdef EXPANDED_U4
        case Layout::U4:
        case Layout::K4:
            if (w.minima) PANEL(EXPANDED_U4, kSingle, kMinima);
            else PANEL(EXPANDED_U4, kSingle, kNoMinima);
            return;
        case Layout::U5:
        case Layout::K5:
            if (w.minima) PANEL(EXPANDED_U5, kSingle, kMinima);
            else PANEL(EXPANDED_U5, kSingle, kNoMinima);
            return;
        case Layout::C4: return PANEL(S8, kSingle, kNoMinima);
#endif
#ifdef EXPANDED_U6
        case Layout::K6: return PANEL(EXPANDED_U6, kSingle, kNoMinima);
#endif
        default: return PANEL(S8Joined, kSingle, kNoMinima); // S8Cut's
        }
    }
    switch (w.layout) {
    case Layout::S8:
        if (w.minima) { NARROW_OR_WIDE(S8, kMinima); }
        else { NARROW_OR_WIDE(S8, kNoMinima); }
        return;
    case Layout::S8By16: NARROW_OR_WIDE(S8By16, kNoMinima); return;
    case Layout::U5:
        if (w.minima) { NARROW_OR_WIDE(U5, kMinima); }
        else { NARROW_OR_WIDE(U5, kNoMinima); }
        return;
    case Layout::K4: return PANEL(U4, kSteps, kMinima);
    case Layout::K5: return PANEL(U5, kSteps, kMinima);
    case Layout::K6: return PANEL(U6, kSteps, kNoMinima);
    case Layout::C4: return PANEL(C4, kSteps, kNoMinima);
    case Layout::U2:
    case Layout::U3:
        for (int i = 0; i < P; i++, panel += w.panel_bytes, out += C * 16, ahead = {}) {
            if (w.layout == Layout::U3) step_panel<C, true>(panel, q, d, sum, blocks, group, ahead, out);
            else step_panel<C, false>(panel, q, d, sum, blocks, group, ahead, out);
        }
        return;
    default: // U4
        if (w.zeros) PANEL(U4, kHalf, kZeros);
        else if (w.minima) { NARROW_OR_WIDE(U4, kMinima); }
        else { NARROW_OR_WIDE(U4, kNoMinima); }
    }
#undef NARROW_OR_WIDE
#undef PANEL
}

// One fused multiply-add chain per output, k ascending.
template <int C, class T> __attribute__((noinline)) void float_panel(const T* w, const float* x, int64_t k, float* out) {
    enum { kSteps = sizeof(T) < 4 ? 2 : 1 }; // to a line
    V z[C][16 / VW];
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int j = 0; j < 16 / VW; j++) z[m][j] = vzero();
    for (int64_t i = 0; i < k; i++, w += 16, x += C) {
        if (C == 1 && i % kSteps == 0) prefetch_far(reinterpret_cast<const uint8_t*>(w) + kRowAhead);
        V row[16 / VW];
        UNROLL for (int j = 0; j < 16 / VW; j++) row[j] = vload_as(w + j * VW);
        UNROLL for (int m = 0; m < C; m++) {
            const V b = vset1(x[m]);
            UNROLL for (int j = 0; j < 16 / VW; j++) z[m][j] = vfma(row[j], b, z[m][j]);
        }
    }
    UNROLL for (int m = 0; m < C; m++)
        UNROLL for (int j = 0; j < 16 / VW; j++) vstore(out + m * 16 + j * VW, z[m][j]);
}

template <int C> SIMD void tile_float(const Matrix& w, const uint8_t* panel, const Activations& a, int64_t start,
                                      float* out) {
    const float* x = a.x + start * w.k;
    if (w.layout == Layout::F32) float_panel<C>((const float*)panel, x, w.k, out);
    else if (w.layout == Layout::F16) float_panel<C>((const F16Element*)panel, x, w.k, out);
    else if (w.layout == Layout::F8) coded_panel<C, F8Codes>(w, panel, x, out);
    else if (is_coded(w.layout)) coded_panel<C, NibbleCodes>(w, panel, x, out);
    else float_panel<C>((const BF16Element*)panel, x, w.k, out);
}

// Panels of codes that one token meets at once: as many as registers hold scales and tables for.
enum { CODED_AT_ONCE = VW == 16 ? 4 : 2 };
SIMD void row_coded(const Matrix& w, const uint8_t* panel, const float* x, float* out) {
    if (w.layout == Layout::F8) coded_row<CODED_AT_ONCE, F8Codes>(w, panel, x, out);
    else coded_row<CODED_AT_ONCE, NibbleCodes>(w, panel, x, out);
}

template <int C, int P> void tile(const LinearArgs& a, int64_t p, const uint8_t* expanded, int64_t start, Ahead ahead) {
    alignas(64) float out[P * C * 16];
    const uint8_t* panel = expanded ? expanded : a.w.data + p * a.w.panel_bytes;
    const int64_t columns = a.w.gated ? 8 : 16;
    UNROLL for (int i = 0; i < P; i++) prefetch_epilogue<C>(a, start, (p + i) * columns);
    if (a.a.q) {
        if constexpr (C <= LARGEST_TILE_INT8 && P <= PANELS_AT_ONCE) tile_quantized<C, P>(a.w, panel, units_of(a.w, p), expanded, a.a, start, ahead, out);
    } else if constexpr (P == 1 && C <= LARGEST_TILE_FLOAT) {
        tile_float<C>(a.w, panel, a.a, start, out);
    } else if constexpr (P == CODED_AT_ONCE && C == 1) {
        row_coded(a.w, panel, a.a.x + start * a.w.k, out);
    }
    UNROLL for (int i = 0; i < P; i++) {
        if (a.w.gated) store_gated<C>(a, out + i * C * 16, start, (p + i) * columns);
        else store_plain<C>(a, out + i * C * 16, start, (p + i) * columns);
    }
}

template <int P> void any_tile(const LinearArgs& a, int64_t p, const uint8_t* expanded, int64_t start, int64_t c, Ahead ahead) {
    switch (c) {
#define CASE(C) case C: return tile<C, P>(a, p, expanded, start, ahead);
    CASE(1) CASE(2) CASE(3) CASE(4)
#if LARGEST_TILE > 4
    CASE(5) CASE(6)
#endif
#if LARGEST_TILE > 6
    CASE(7) CASE(8)
#endif
#if LARGEST_TILE > 8
    CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
    }
}

// How many of `left` panels are computed at once.
SIMD int64_t panels_at_once(const LinearArgs& a, int64_t left) {
    if (is_coded(a.w.layout) && a.a.m == 1) return left < CODED_AT_ONCE ? 1 : CODED_AT_ONCE;
    const int64_t most = a.a.q && a.a.m > 1 ? PANELS_AT_ONCE : 1;
    return left < most ? left : most;
}

// Prefetch distance. While each of T tiles computes panels p to p + count, it prefetches its share of the next `next`
// panels. One row of floats asks for each line itself (kRowAhead). One tile of one panel prefetches 6 KiB ahead in its own range instead: its blocks pass too fast for more. Its
// last panel prefetches what the thread goes on with, as far as it is one's length.
constexpr int64_t kStreamAhead = 6144;
SIMD bool streams(const Activations& a, int64_t count, int64_t T) { return a.q && T == 1 && count == 1; }
struct Following {
    const uint8_t* at;
    int64_t part, each; // bytes of a tile, and with each block of a quantized panel; 0: the tile's at once
    bool near = false;  // as Ahead's
    Ahead of_tile(int64_t t) const { return {.at = at + t * part, .each = each, .near = near}; }
};
SIMD Following following(const Matrix& w, const Activations& a, int64_t p, int64_t count, int64_t next, int64_t T, const uint8_t* upcoming) {
    const uint8_t* panel = w.data + p * w.panel_bytes;
    const uint8_t* at = next ? panel + count * w.panel_bytes : upcoming;
    const int64_t part = at ? (next ? next : count) * w.panel_bytes / T : 0;
    if (!a.q) return {.at = at, .part = part, .each = 0};
    if (streams(a, count, T)) {
        const bool goes_on = !next && upcoming && w.panel_bytes <= kStreamAhead;
        return {.at = goes_on ? upcoming : panel + kStreamAhead, .part = 0, .each = w.block_bytes};
    }
    // Many tiles have few lines each to ask for: all at once, before the products.
    if (T > 1 && part / 64 < w.k / kBlock / 2) return {.at = at, .part = part, .each = 0};
    return {.at = at, .part = part, .each = (part * kBlock / w.k + 63) / 64 * 64};
}

// Tokens are swept in chunks whose activations stay in the second-level cache while every panel of
// weights passes by; a panel stays in the first level meanwhile.
SIMD int64_t tiles_in_sweep(const Matrix& w, const Activations& a) {
    const int64_t chunk = (216 * 1024) / (w.k * (a.q ? 1 : 4) * (a.tiles.base + 1)); // a 1.1B model's widest 32 rows in one sweep
    return chunk < 1 ? 1 : chunk;
}

// What the panels of w are once they are joined, one after the other.
SIMD Matrix joined(Matrix w) {
    w.layout = Layout::S8;
    w.wide = true;
    w.units = nullptr;
    w.block_bytes = kJoinedBytes;
    w.panel_bytes = w.k / kBlock * kJoinedBytes;
    return w;
}

SIMD void any_join_panel(const Matrix& w, int64_t p, bool streams, uint8_t* to) {
    if (streams) join_panel<true>(w, p, to);
    else join_panel<false>(w, p, to);
}

void linear(const LinearArgs& given, int64_t begin, int64_t end) {
    LinearArgs a = given; // as the tiles read it
    const Matrix& w = given.w;
    const bool joins = w.layout == Layout::S8Cut;
    if (joins) a.w = joined(w);
    const Tiles& tiles = a.a.tiles;
    const int64_t chunk = tiles_in_sweep(w, a.a);
    for (int64_t first_tile = 0; first_tile < tiles.count; first_tile += chunk) {
        const int64_t last = first_tile + chunk < tiles.count ? first_tile + chunk : tiles.count;
        const int64_t tokens = tile_start(tiles, last) - tile_start(tiles, first_tile);
        uint8_t* expanded = joins || expands(w, tokens) ? a.scratch : nullptr;
        for (int64_t p = begin, count; p < end; p += count) {
            count = panels_at_once(a, end - p);
            for (int64_t i = 0; joins && i < count; i++) any_join_panel(w, p + i, a.a.m == 1, expanded + i * a.w.panel_bytes);
#ifdef EXPANDED_U6
            if (expanded && !joins) expand_panel(w, p, expanded);
#endif
            const int64_t next = panels_at_once(a, end - p - count);
            Following follow = joins && a.a.m == 1 ? Following{} : following(w, a.a, p, count, next, last - first_tile, a.upcoming);
            follow.near = a.near;
            if (!next && a.upcoming && streams(a.a, count, last - first_tile) && w.panel_bytes > kStreamAhead) prefetch_bytes(a.upcoming, kStreamAhead);
            const int64_t low = joins && next ? next * w.k / kBlock * kLowBytes / (last - first_tile) : 0; // of each tile
            for (int64_t t = first_tile; t < last; t++) {
                const Ahead ahead = follow.of_tile(t - first_tile);
                if (!ahead.each && a.a.m > 1) prefetch_bytes(ahead.at, follow.part);
                if (low && a.a.m > 1) prefetch_bytes(w.low + (p + count) * w.k / kBlock * kLowBytes + (t - first_tile) * low, low);
                if (count == 1) any_tile<1>(a, p, expanded, tile_start(tiles, t), tile_size(tiles, t), ahead);
                else if (count == CODED_AT_ONCE) tile<1, CODED_AT_ONCE>(a, p, nullptr, tile_start(tiles, t), ahead);
#if PANELS_AT_ONCE > 1
                else any_tile<PANELS_AT_ONCE>(a, p, expanded, tile_start(tiles, t), tile_size(tiles, t), ahead);
#endif
            }
        }
    }
}
