// Which experts a token goes to, and with what share; kernels/types.py, Routing, says the rules.
#pragma once
#include <cstdint>

namespace octavo {

struct Routing { // the defaults choose by probability alone
    bool sigmoid = false; // where probabilities come from; softmax otherwise
    const float* bias = nullptr;
    int64_t groups = 1, top_groups = 1, group_top = 1;
    float scale = 1.0f;
};

// Throws std::invalid_argument where top_k experts cannot be chosen so.
void check_routing(const Routing& routing, int64_t experts, int64_t top_k);

// The top_k experts, ascending by number, and their shares, from their probabilities p.
// score: room for 2 * experts floats.
void choose_experts(const Routing& routing, const float* p, int64_t experts, int64_t top_k, bool renormalize,
                    float* score, int32_t* pick, float* shares);

} // namespace octavo
