// Texts that drafts come from, and how many of a draft's tokens are verified, for Python.
#include "bind.h"
#include "draft_policy.h"
#include "text_index.h"

namespace octavo {
namespace {

Load load_of(const nb::tuple& load) {
    return {.tokens = nb::cast<int64_t>(load[0]), .sampled = nb::cast<int64_t>(load[1]), .pairs = nb::cast<double>(load[2])};
}

// Of a params.drafts.Draft.
DraftedTokens tokens_of(nb::handle draft) {
    DraftedTokens found{.tokens = nb::cast<std::vector<int32_t>>(draft.attr("tokens")),
                        .parents = nb::cast<std::vector<int32_t>>(draft.attr("parents"))};
    bool chain = true;
    for (size_t i = 0; i < found.parents.size(); ++i) chain = chain && found.parents[i] == static_cast<int32_t>(i) - 1;
    if (chain) found.parents.clear();
    return found;
}

nb::dict choose(DraftPolicy& policy, nb::handle drafts, nb::handle positions, const nb::tuple& load) {
    std::vector<DraftPolicy::Offer> offers;
    for (const nb::handle row : nb::iter(drafts)) {
        const nb::object draft = drafts[row], tokens = draft.attr("tokens");
        const int number = nb::cast<int>(row), support = nb::cast<int>(draft.attr("support"));
        if (!policy.follows(number, support)) policy.offered(number, support, tokens_of(draft));
        offers.push_back({.row = number,
                          .support = support,
                          .count = nb::len(tokens),
                          .position = nb::cast<int64_t>(positions[row])});
    }
    nb::dict chosen;
    for (const auto& [row, count] : policy.choose(offers, load_of(load))) {
        const nb::object key = nb::int_(row), draft = drafts[key];
        chosen[key] = draft.attr("first")(count);
    }
    return chosen;
}

nb::dict wanted(DraftPolicy& policy, const std::vector<int>& rows) {
    nb::dict asked;
    for (const auto& [row, most] : policy.wanted(rows)) asked[nb::int_(row)] = most;
    return asked;
}

} // namespace

void bind_spec(nb::module_& m) {
    nb::class_<TextIndex>(m, "NativeTextIndex")
        .def(nb::init<std::vector<int>, int64_t>(), "levels"_a, "capacity"_a)
        .def("extend", &TextIndex::extend, "tokens"_a)
        .def("follow", &TextIndex::follow, "place"_a, "matched"_a, "tokens"_a)
        .def("forget_before", &TextIndex::forget_before, "place"_a)
        .def("tail", &TextIndex::tail, "count"_a)
        .def("matches", &TextIndex::matches, "keys"_a, "tail"_a, "most"_a)
        .def("token", &TextIndex::token, "place"_a)
        .def("following", &TextIndex::following, "place"_a, "count"_a)
        .def("__len__", [](const TextIndex& text) { return text.count() - text.first(); })
        .def_prop_ro("count", &TextIndex::count)
        .def_prop_ro("first", &TextIndex::first)
        .def_prop_ro("keys", &TextIndex::keys)
        .def_prop_ro("nbytes", &TextIndex::nbytes);

    nb::class_<DraftPolicy>(m, "NativePolicy")
        .def("__init__", [](DraftPolicy* self, const StepCosts::Points& tokens, const StepCosts::Points& sampled, double pair_s) {
            new (self) DraftPolicy(StepCosts(tokens, sampled, pair_s));
        }, "tokens"_a, "sampled"_a, "pair_s"_a)
        .def("start", &DraftPolicy::start, "row"_a, "most"_a)
        .def("remove", &DraftPolicy::remove, "row"_a)
        .def("wanted", &wanted, "rows"_a)
        .def("choose", &choose, "drafts"_a, "positions"_a, "load"_a)
        .def("rest", [](DraftPolicy& policy, const nb::tuple& load, double asking_s) {
            return policy.rest(load_of(load), asking_s);
        }, "load"_a, "asking_s"_a)
        .def("observe", &DraftPolicy::observe, "row"_a, "tokens"_a, "steps"_a = 1)
        .def("took", [](DraftPolicy& policy, const nb::tuple& load, double seconds) {
            policy.took(load_of(load), seconds);
        }, "load"_a, "seconds"_a);
}

} // namespace octavo
