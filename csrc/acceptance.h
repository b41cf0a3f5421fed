// How many tokens of a draft are right, as rows went on: spec/acceptance.py says how, and does the same in Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace octavo {

struct DraftedTokens {
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents; // empty: a chain
};

// Of drafts with one support: how many there were, and how often each place was right. Both decay.
struct Chances {
    std::vector<double> seen, right;

    void add(const std::vector<bool>& hits, double memory);
};

class Acceptance {
public:
    struct Chance {
        double mean, error;
    };

    void start(int row);
    void remove(int row) { rows_.erase(row); }
    // Whether a draft with this support is followed already: another one is passed over.
    bool follows(int row, int support) const;
    void offered(int row, int support, DraftedTokens draft);
    // The row went on with these tokens. Returns how many tokens were right of a draft of which that is known
    // now, of several the most; -1: of none.
    int observe(int row, const std::vector<int32_t>& tokens);
    // That each of a draft's first `count` tokens is right: none rises, and they end before one that pays nowhere.
    void chances(int row, int support, size_t count, std::vector<Chance>& found) const;

private:
    // A draft that was offered to a row, and how far the row's tokens have gone along it.
    struct Followed {
        DraftedTokens draft;
        std::vector<bool> hits;
        int32_t node = -1;

        bool follow(const std::vector<int32_t>& tokens);
        int32_t child(int32_t token) const; // of the node where it is; -1: none has this token
        bool ended() const;                 // that node has no child
    };
    struct Row {
        std::map<int, Chances> own;       // by support
        std::map<int, Followed> followed; // the same
    };

    std::map<int, Row> rows_;
    std::map<int, Chances> all_;
};

} // namespace octavo
