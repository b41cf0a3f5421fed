// Where in a text its last tokens stood before: spec/text_index.py says how, and does the same in Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace octavo {

class TextIndex {
public:
    // Throws std::invalid_argument where the levels do not ascend from 1, or nothing fits.
    TextIndex(std::vector<int> levels, int64_t capacity);

    void extend(const std::vector<int32_t>& tokens);
    // Append tokens, and follow a place along them.
    std::pair<int64_t, int64_t> follow(int64_t place, int64_t matched, const std::vector<int32_t>& tokens);
    void forget_before(int64_t place);

    std::vector<int32_t> tail(int64_t count) const;
    // (place, how many tokens before it are equal), `most` of them at most.
    std::vector<std::pair<int64_t, int64_t>> matches(const std::vector<uint32_t>& keys, const std::vector<int32_t>& tail,
                                                     size_t most) const;
    int32_t token(int64_t place) const;
    std::vector<int32_t> following(int64_t place, int64_t count) const;

    int64_t count() const { return count_; }
    int64_t first() const { return first_; }
    int64_t nbytes() const;
    const std::vector<uint32_t>& keys() const { return keys_; }

private:
    struct Level {
        int64_t length;
        std::vector<int32_t> latest, earlier;
    };

    void allocate(int64_t size);
    void append(int32_t token);
    void rebuild(const std::vector<int32_t>& tokens);
    int64_t held() const { return count_ - first_; }
    int32_t& at(int64_t place) { return tokens_[static_cast<size_t>(place & (size_ - 1))]; }
    int32_t at(int64_t place) const { return tokens_[static_cast<size_t>(place & (size_ - 1))]; }
    int64_t chain(uint32_t key) const { return static_cast<int64_t>(static_cast<uint64_t>(key) >> shift_); }

    std::vector<Level> levels_;
    std::vector<uint32_t> keys_;
    std::vector<int32_t> tokens_;
    int64_t capacity_, size_ = 0, count_ = 0, first_ = 0;
    int shift_ = 0;
};

} // namespace octavo
