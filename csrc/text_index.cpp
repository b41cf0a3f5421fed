#include "text_index.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>

namespace octavo {
namespace {

// These are those of spec/text_index.py: both find the same places.
constexpr int32_t kSeparator = -1;
constexpr int kSteps = 24;
constexpr int64_t kSmallest = 256;
constexpr size_t kFew = 16;
constexpr uint32_t kPrime = 0x01000193, kSpread = 0x9E3779B1;

int64_t power_of_two(int64_t count) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(count, 1)))); }

} // namespace

TextIndex::TextIndex(std::vector<int> levels, int64_t capacity) : keys_(levels.size()), capacity_(power_of_two(capacity)) {
    if (levels.empty() || levels[0] < 1 || std::adjacent_find(levels.begin(), levels.end(), std::greater_equal<>()) != levels.end())
        throw std::invalid_argument("a text's levels ascend from 1");
    if (capacity < 1 || capacity > INT32_MAX) throw std::invalid_argument("a text has 1 to 2^31 - 1 tokens");
    for (const int length : levels) levels_.push_back({.length = length, .latest = {}, .earlier = {}});
    allocate(std::min(kSmallest, capacity_));
}

void TextIndex::allocate(int64_t size) {
    size_ = size;
    shift_ = 33 - std::bit_width(static_cast<uint64_t>(size));
    tokens_.assign(static_cast<size_t>(size), 0);
    for (Level& level : levels_) {
        level.latest.assign(static_cast<size_t>(size), 0);
        level.earlier.assign(static_cast<size_t>(size), 0);
    }
}

int64_t TextIndex::nbytes() const { return size_ * 4 * static_cast<int64_t>(1 + 2 * levels_.size()); }

void TextIndex::extend(const std::vector<int32_t>& tokens) {
    const int64_t added = static_cast<int64_t>(tokens.size());
    const bool too_small = size_ < capacity_ && held() + added > size_;
    if (too_small || (tokens.size() > kFew && 8 * added > held()))
        rebuild(tokens);
    else
        for (const int32_t token : tokens) append(token);
}

void TextIndex::rebuild(const std::vector<int32_t>& tokens) {
    std::vector<int32_t> all = tail(held());
    all.insert(all.end(), tokens.begin(), tokens.end());
    const int64_t end = count_ + static_cast<int64_t>(tokens.size());
    const int64_t kept = std::min(static_cast<int64_t>(all.size()), capacity_);
    allocate(std::min(std::max(power_of_two(kept + 1), kSmallest), capacity_));
    count_ = first_ = end - kept; // places keep their numbers
    for (auto token = all.end() - kept; token != all.end(); ++token) append(*token);
}

void TextIndex::append(int32_t token) {
    at(count_++) = token;
    first_ = std::max(first_, count_ - size_);
    const size_t here = static_cast<size_t>((count_ - 1) & (size_ - 1));
    uint32_t run = 0, power = 1;
    int64_t length = 0;
    for (size_t i = 0; i < levels_.size() && levels_[i].length <= held(); ++i) {
        for (; length < levels_[i].length; ++length, power *= kPrime)
            run += static_cast<uint32_t>(at(count_ - 1 - length)) * kSpread * power;
        keys_[i] = run;
        int32_t& latest = levels_[i].latest[static_cast<size_t>(chain(run))];
        levels_[i].earlier[here] = latest;
        latest = static_cast<int32_t>(count_);
    }
}

std::pair<int64_t, int64_t> TextIndex::follow(int64_t place, int64_t matched, const std::vector<int32_t>& tokens) {
    const int64_t end = count_; // what follows there is yet to be appended
    for (const int32_t token : tokens) {
        if (place <= 0 || (place < end ? at(place) : tokens[static_cast<size_t>(place - end)]) != token) {
            place = 0;
            break;
        }
        ++place, ++matched;
    }
    extend(tokens);
    return place > first_ && this->token(place) != kSeparator ? std::pair{place, matched} : std::pair<int64_t, int64_t>{0, 0};
}

void TextIndex::forget_before(int64_t place) { first_ = std::max(first_, std::min(place, count_)); }

std::vector<int32_t> TextIndex::tail(int64_t count) const {
    count = std::clamp<int64_t>(count, 0, held());
    std::vector<int32_t> found;
    found.reserve(static_cast<size_t>(count));
    for (int64_t place = count_ - count; place < count_; ++place) found.push_back(at(place));
    return found;
}

std::vector<std::pair<int64_t, int64_t>> TextIndex::matches(const std::vector<uint32_t>& keys, const std::vector<int32_t>& tail,
                                                            size_t most) const {
    if (keys.size() != levels_.size()) throw std::invalid_argument("texts of other levels");
    const int64_t known = static_cast<int64_t>(tail.size());
    std::vector<std::pair<int64_t, int64_t>> found;
    for (size_t i = levels_.size(); i-- > 0 && found.empty();) {
        const Level& level = levels_[i];
        const auto before = [&](int64_t place) { return level.earlier[static_cast<size_t>((place - 1) & (size_ - 1))]; };
        int64_t place = level.latest[static_cast<size_t>(chain(keys[i]))];
        if (place == count_) place = before(place); // of this text itself the chain begins at the end
        for (int step = 0; step < kSteps && place > first_ && found.size() < most; ++step, place = before(place)) {
            const int64_t longest = std::min(known, place - first_);
            int64_t length = 0;
            while (length < longest && at(place - 1 - length) == tail[static_cast<size_t>(known - 1 - length)] &&
                   at(place - 1 - length) != kSeparator)
                ++length;
            if (length >= level.length && this->token(place) != kSeparator) found.emplace_back(place, length);
        }
    }
    return found;
}

int32_t TextIndex::token(int64_t place) const { return place >= 0 && place < count_ ? at(place) : kSeparator; }

std::vector<int32_t> TextIndex::following(int64_t place, int64_t count) const {
    const int64_t period = count_ - place;
    std::vector<int32_t> found;
    if (place < 0 || period <= 0) return found;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t token = i < period ? at(place + i) : found[static_cast<size_t>(i - period)];
        if (token == kSeparator) break;
        found.push_back(token);
    }
    return found;
}

} // namespace octavo
