#include "pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace octavo {
namespace {

constexpr int64_t kSlice = int64_t{8} << 20;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

float half_to_float(uint16_t h) {
    const uint32_t magnitude = (h & 0x7fffu) << 13;
    float x;
    std::memcpy(&x, &magnitude, 4);
    x *= 0x1p112f; // moves the exponent's bias, denormals included
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (magnitude > 0x0f7fffff) bits = magnitude | 0x7f800000;
    bits |= (h & 0x8000u) << 16;
    std::memcpy(&x, &bits, 4);
    return x;
}

float number_at(const Table& t, int64_t row, int64_t block) {
    const uint8_t* at = t.data + row * t.row_stride + block * t.column_stride;
    if (!t.wide) {
        uint16_t h;
        std::memcpy(&h, at, 2);
        return half_to_float(h);
    }
    float x;
    std::memcpy(&x, at, 4);
    return x;
}

// 32 bits, element j's at bit j, to 4 bytes: bit j of byte e is element 4j + e's.
void spread_bits(const uint8_t* from, uint8_t* to) {
    uint32_t bits;
    std::memcpy(&bits, from, 4);
    for (int e = 0; e < 4; e++) {
        uint32_t x = bits >> e & 0x11111111u; // every fourth bit, moved together in three steps
        x = (x | x >> 3) & 0x03030303u;
        x = (x | x >> 6) & 0x000f000fu;
        to[e] = static_cast<uint8_t>(x | x >> 12);
    }
}

// The largest power of two that all f16 scales of a lane, `stride` apart from group to group, are multiples of, if they are
// within int16's range of it, else 0; 1 for zeros alone.
float unit_of(const uint8_t* table, int64_t lane, int64_t groups, int64_t stride) {
    uint32_t all = 0, largest = 0; // magnitudes as multiples of 2^-24: f16 has no bit below
    for (int64_t g = 0; g < groups; g++, table += stride) {
        uint16_t h;
        std::memcpy(&h, table + lane * 2, 2);
        const float x = half_to_float(h & 0x7fffu) * 0x1p24f; // below 2^40, or not finite
        if (!(x < 0x1p31f)) return 0.0f;
        all |= static_cast<uint32_t>(x);
        largest = std::max(largest, static_cast<uint32_t>(x));
    }
    if (!all) return 1.0f;
    const uint32_t lowest = all & (~all + 1);
    return largest / lowest <= 32767 ? static_cast<float>(lowest) * 0x1p-24f : 0.0f;
}

// f16 scales of a panel to integers (types.h), if all its rows' allow that; else its units stay 0.
void to_integer_scales(const Matrix& m, uint8_t* panel, float* units) {
    const int64_t groups = m.k / kBlock / m.group, stride = group_bytes(m);
    uint8_t* table = panel + tables_at(m, 0);
    float found[kPanel];
    for (int64_t lane = 0; lane < kPanel; lane++)
        if ((found[lane] = unit_of(table, lane, groups, stride)) == 0.0f) return;
    for (int64_t g = 0; g < groups; g++, table += stride) {
        uint16_t from[kPanel];
        int16_t to[kPanel];
        std::memcpy(from, table, sizeof from);
        for (int64_t lane = 0; lane < kPanel; lane++)
            to[integer_scale_at(lane)] = static_cast<int16_t>(half_to_float(from[lane]) / found[lane]);
        std::memcpy(table, to, sizeof to);
    }
    std::memcpy(units, found, sizeof found);
}

// 32 numbers to a lane of a block of S8Cut's three parts, four at a time in a word.
void cut_block(const uint8_t* from, uint8_t* high, uint8_t* low, uint8_t* fifth) {
    uint32_t middle[4] = {}, others[4] = {}, top = 0;
    for (int j = 0; j < 8; j++) {
        uint32_t x;
        std::memcpy(&x, from + 4 * j, 4);
        x ^= 0x80808080u; // + 128
        const uint32_t seventh = x >> 7 & 0x01010101u;
        middle[j % 4] |= (x >> 3 & 0x0f0f0f0fu) << j / 4 * 4;
        others[j % 4] |= ((x & 0x07070707u) | seventh << 3) << j / 4 * 4;
        top |= seventh << j;
    }
    for (int q = 0; q < 4; q++) {
        std::memcpy(high + q * kPanel * 4, &middle[q], 4);
        std::memcpy(low + q * kPanel * 4, &others[q], 4);
    }
    std::memcpy(fifth, &top, 4);
}

const float kNF4[16] = {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
                        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
                        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
const float kFP4[16] = {0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 0.5f, 2.0f / 12, 0.25f,
                        -0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f};

struct Job {
    const std::vector<Source>* sources;
    Matrix m;
    uint8_t *data, *low, *fifth;
    float* units;

    // Which source holds logical row r; r becomes the row within it.
    const Source* find(int64_t& r) const {
        for (const Source& s : *sources) {
            if (r < s.rows) return &s;
            r -= s.rows;
        }
        return nullptr;
    }

    // The logical row of a lane of a panel, or -1 past the end.
    int64_t row_of(int64_t panel, int64_t lane) const {
        if (!m.gated) return panel * kPanel + lane < m.n ? panel * kPanel + lane : -1;
        const int64_t half = m.n / 2, r = panel * 8 + lane % 8;
        return r < half ? r + (lane < 8 ? 0 : half) : -1;
    }

    // Entry `group` of a source's table to a lane of a panel's; fallback's times the offset where it has none.
    void pack_entry(const Table& t, const Table* fallback, int64_t row, int64_t group, int64_t lane, uint8_t* to) const {
        if (!m.wide) {
            std::memcpy(to + lane * 2, t.data + row * t.row_stride + group * t.column_stride, 2);
            return;
        }
        const float x = t.data ? number_at(t, row, group) : static_cast<float>(offset_of(m.layout)) * number_at(*fallback, row, group);
        std::memcpy(to + lane * 4, &x, 4);
    }

    void pack_lane(int64_t panel, int64_t lane) const {
        int64_t row = row_of(panel, lane);
        if (row < 0) return; // memory from the system is zero
        const Source& s = *find(row);
        uint8_t* to = data + panel * m.panel_bytes;
        const uint8_t* from = s.values + row * s.row_stride;
        if (is_coded(m.layout)) return code_lane(panel, lane, s, row);
        if (!is_quantized(m.layout)) {
            const int64_t size = m.layout == Layout::F32 ? 4 : 2;
            for (int64_t k = 0; k < m.k; k++) std::memcpy(to + (k * kPanel + lane) * size, from + k * size, size);
            return;
        }
        if (m.layout == Layout::S8Cut) return cut_lane(panel, lane, s, row);
        const bool fifth = m.layout == Layout::U5 || m.layout == Layout::K5; // its bits come first
        const int64_t steps = step_bytes(m.layout) / kPanel; // its last bytes
        const int64_t quads = value_bytes(m.layout) / (kPanel * 4) - fifth, scales = scale_tables(m.layout);
        for (int64_t b = 0; b < m.k / kBlock; b++, from += s.block_stride) {
            to = data + panel * m.panel_bytes + values_at(m, b);
            const uint8_t* values = from + 4 * fifth;
            for (int64_t q = 0; q < quads; q++) std::memcpy(to + (q * kPanel + lane) * 4, values + 4 * q, 4);
            if (fifth) spread_bits(from, to + (quads * kPanel + lane) * 4);
            uint8_t* behind = to + (quads + fifth) * kPanel * 4;
            for (int64_t i = 0; i < steps; i++) behind[is_few_bits(m.layout) ? lane * 2 + i : i * kPanel + lane] = values[quads * 4 + i];
            if (b % m.group) continue;
            const int64_t group = b / m.group;
            uint8_t* table = to + value_bytes(m.layout);
            for (int64_t i = 0; i < scales; i++, table += table_bytes(m.wide))
                pack_entry(s.scale, nullptr, row, group * scales + i, lane, table);
            if (m.zeros) table[lane] = s.minimum.data[row * s.minimum.row_stride + group * s.minimum.column_stride];
            else if (m.minima) pack_entry(s.minimum, &s.scale, row, group, lane, table);
        }
    }

    void code_lane(int64_t panel, int64_t lane, const Source& s, int64_t row) const {
        const bool bytes = m.layout == Layout::F8;
        const uint8_t* from = s.values + row * s.row_stride;
        uint8_t* to = data + panel * m.panel_bytes;
        for (int64_t first = 0, group = 0; first < m.k; first += m.group, group++) {
            const int64_t count = std::min(m.group, m.k - first);
            const float scale = number_at(s.scale, row, group) * (bytes ? 0x1p8f : 1.0f);
            std::memcpy(to + lane * 4, &scale, 4);
            uint8_t* values = to + kPanel * 4 + lane;
            for (int64_t i = 0; i < count; i += bytes ? 1 : 2, from++, values += kPanel)
                *values = bytes ? *from : static_cast<uint8_t>(*from << 4 | *from >> 4);
            to += coded_group_bytes(m, count);
        }
    }

    void cut_lane(int64_t panel, int64_t lane, const Source& s, int64_t row) const {
        const int64_t blocks = m.k / kBlock;
        const uint8_t* from = s.values + row * s.row_stride;
        uint8_t *to = data + panel * m.panel_bytes, *rest = low + panel * blocks * kLowBytes, *bits = fifth + panel * blocks * kFifthBytes;
        for (int64_t b = 0; b < blocks; b++, from += s.block_stride, to += m.block_bytes, rest += kLowBytes, bits += kFifthBytes) {
            cut_block(from, to + lane * 4, rest + lane * 4, bits + lane * 4);
            pack_entry(s.scale, nullptr, row, b, lane, to + value_bytes(m.layout));
        }
    }

    void pack_panel(int64_t panel) const {
        for (int64_t lane = 0; lane < kPanel; lane++) pack_lane(panel, lane);
        if (units) to_integer_scales(m, data + panel * m.panel_bytes, units + panel * kPanel);
    }
};

} // namespace

const float* codes_of(Layout layout) { return layout == Layout::FP4 ? kFP4 : kNF4; }

std::shared_ptr<PackedMatrix> pack(Pool& pool, WeightArena& arena, const Matrix& as, const std::vector<Source>& sources,
                                   std::vector<int32_t> order, const std::function<void()>& after_slice) {
    const Layout layout = as.layout;
    const int64_t k = as.k;
    const bool gated = as.gated, wide = as.wide;
    int64_t n = 0;
    for (const Source& s : sources) n += s.rows;
    if (n == 0 || k <= 0) throw std::invalid_argument("a packed matrix has at least one row and one column");
    if (gated && (sources.size() != 2 || sources[0].rows != sources[1].rows))
        throw std::invalid_argument("a gated weight is made of two weights of one shape, gate and up");
    if (is_quantized(layout) && k % kBlock) throw std::invalid_argument("quantized weights need a multiple of 32 columns");
    if (layout == Layout::S8Cut && (gated || as.minima || as.group != 1)) throw std::invalid_argument("a head has neither gates nor minima");
    if (as.group < 1 || (as.group > 1 && !is_coded(layout) && (k % (kBlock * as.group) || (layout != Layout::U4 && layout != Layout::S8 && !has_steps(layout)))))
        throw std::invalid_argument("groups are of U4 and S8, and divide the columns");
    const bool one_block = layout == Layout::C4 && as.group == 1;
    if (has_steps(layout) && ((as.group != 8 && !one_block) || wide || as.minima != has_step_minima(layout)))
        throw std::invalid_argument("scales in two levels are f16, of 256 columns, with minima where the layout has them");
    if (as.zeros && (layout != Layout::U4 || wide || !as.minima)) throw std::invalid_argument("zero points are of U4 with f16 scales");
    if (!order.empty() && static_cast<int64_t>(order.size()) != k) throw std::invalid_argument("an order is of all columns");
    auto packed = std::make_shared<PackedMatrix>();
    Matrix& m = packed->view;
    packed->order = std::move(order);
    m = as;
    m.n = n;
    m.panels = gated ? (n / 2 + 7) / 8 : (n + kPanel - 1) / kPanel;
    m.order = packed->order.empty() ? nullptr : packed->order.data();
    const int64_t in_groups = round_up(k / kBlock / m.group * group_bytes(m), 64);
    m.panel_bytes = is_quantized(layout) ? in_groups : k * kPanel * (layout == Layout::F32 ? 4 : 2);
    if (is_coded(layout)) m.panel_bytes = round_up((k + m.group - 1) / m.group * kPanel * 4 + coded_group_bytes(m, k) - kPanel * 4, 64);
    m.block_bytes = group_bytes(m) / m.group; // on the average
    auto take = [&](int64_t bytes) {
        auto piece = arena.take(static_cast<size_t>(bytes));
        packed->owners.push_back(piece.owner);
        packed->nbytes += static_cast<size_t>(bytes);
        return piece.data;
    };
    const bool cut = layout == Layout::S8Cut;
    const int64_t blocks = m.panels * (k / kBlock);
    uint8_t *data = take(m.panel_bytes * m.panels), *low = cut ? take(blocks * kLowBytes) : nullptr, *fifth = cut ? take(blocks * kFifthBytes) : nullptr;
    float* units = nullptr;
    if ((layout == Layout::U4 || cut) && !wide && arena.integer_scales()) units = reinterpret_cast<float*>(take(m.panels * kPanel * 4));
    m.data = data, m.low = low, m.fifth = fifth, m.units = units;
    if (arena.planned()) return packed;
    const Job job{.sources = &sources, .m = m, .data = data, .low = low, .fifth = fifth, .units = units};
    const int64_t slice = std::max<int64_t>(1, kSlice / m.panel_bytes);
    for (int64_t first = 0; first < m.panels; first += slice) {
        const auto count = static_cast<int>(std::min(slice, m.panels - first));
        parallel(pool, count, 4, [&job, first](int panel) {
            job.pack_panel(first + panel);
        });
        if (after_slice && first + count < m.panels) after_slice();
    }
    return packed;
}

size_t activation_bytes(Layout layout, int64_t m, int64_t k) {
    if (!is_quantized(layout)) return static_cast<size_t>(round_up(m * k * 4, 64));
    return static_cast<size_t>(round_up(m * k, 64) + (2 + sum_parts(layout)) * round_up(m * (k / kBlock) * 4, 64));
}

Activations activations_at(uint8_t* memory, Layout layout, int64_t m, int64_t k, int tile) {
    Activations a{};
    a.m = m;
    a.k = k;
    a.offset = offset_of(layout);
    a.parts = static_cast<int>(sum_parts(layout));
    a.tiles = split_tiles(m, tile);
    if (!is_quantized(layout)) {
        a.x = reinterpret_cast<float*>(memory);
        return a;
    }
    const int64_t table = round_up(m * (k / kBlock) * 4, 64);
    a.q = reinterpret_cast<int8_t*>(memory);
    memory += round_up(m * k, 64);
    a.d = reinterpret_cast<float*>(memory);
    a.u = reinterpret_cast<float*>(memory + table);
    a.sum = reinterpret_cast<int32_t*>(memory + 2 * table);
    return a;
}

} // namespace octavo
