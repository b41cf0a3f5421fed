// Which experts a token goes to, and with what share; kernels/types.py, Routing, says the rules.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

struct Scored { // a score and whose it is
    float value;
    int32_t index;
};

struct Routing { // the defaults choose by probability alone
    bool sigmoid = false; // where probabilities come from; softmax otherwise
    const float* bias = nullptr;
    int64_t groups = 1, top_groups = 1, group_top = 1;
    float scale = 1.0f;
};

// Throws std::invalid_argument where top_k experts cannot be chosen so.
void check_routing(const Routing& routing, int64_t experts, int64_t top_k);

// Where one row of n experts is routed.
struct RoutingRoom {
    RoutingRoom(float* memory, int64_t n)
        : p(memory), score(memory + n), worth(memory + 2 * n), kept(reinterpret_cast<int32_t*>(memory + 3 * n)),
          best(reinterpret_cast<Scored*>(memory + 4 * n)) {}
    static size_t bytes(int64_t n) { return static_cast<size_t>(n) * (4 * sizeof(float) + sizeof(Scored)); }

    float *p, *score, *worth;
    int32_t* kept;
    Scored* best;
};

// The k chosen experts, ascending by number, and their shares, from their probabilities room.p.
void choose_experts(const Routing& routing, const RoutingRoom& room, int64_t experts, int64_t k, bool renormalize,
                    int32_t* pick, float* shares);

} // namespace octavo
