#include "call.h"

#include <stdexcept>

namespace octavo {
namespace {

std::map<std::string, const OpType*>& op_types() {
    static std::map<std::string, const OpType*> known; // made before the first that is registered
    return known;
}

} // namespace

const Arguments::Value& Arguments::find(const std::string& name) const {
    if (const auto found = values_.find(name); found != values_.end()) return found->second;
    for (size_t dot = name.rfind('.'); dot != std::string::npos && dot; dot = name.rfind('.', dot - 1)) {
        const auto whole = values_.find(name.substr(0, dot));
        if (whole != values_.end() && std::holds_alternative<std::monostate>(whole->second)) return whole->second;
    }
    throw std::invalid_argument("the op has no argument " + name);
}

template <class T> const T& Arguments::get(const std::string& name) const {
    const T* found = std::get_if<T>(&find(name));
    if (!found) throw std::invalid_argument("the argument " + name + " is of another kind");
    return *found;
}

bool Arguments::has(const std::string& name) const {
    if (const auto found = values_.find(name); found != values_.end())
        return !std::holds_alternative<std::monostate>(found->second);
    const auto field = values_.lower_bound(name + ".");
    return field != values_.end() && field->first.starts_with(name + ".");
}

bool Arguments::flag(const std::string& name) const {
    return !std::holds_alternative<std::monostate>(find(name)) && get<bool>(name);
}

int64_t Arguments::integer(const std::string& name, int64_t of_none) const {
    return std::holds_alternative<std::monostate>(find(name)) ? of_none : get<int64_t>(name);
}

float Arguments::number(const std::string& name, float of_none) const {
    if (std::holds_alternative<int64_t>(find(name))) return static_cast<float>(get<int64_t>(name));
    return std::holds_alternative<std::monostate>(find(name)) ? of_none : static_cast<float>(get<double>(name));
}

const Numbers& Arguments::numbers(const std::string& name) const {
    static const Numbers none;
    return std::holds_alternative<std::monostate>(find(name)) ? none : get<Numbers>(name);
}

const std::vector<Weights>& Arguments::weights(const std::string& name) const { return get<std::vector<Weights>>(name); }

const Weights& Arguments::weight(const std::string& name) const {
    if (weights(name).size() != 1) throw std::invalid_argument("the argument " + name + " must be of one layout");
    return weights(name).front();
}

const KVLayer& Arguments::layer(const std::string& name) const { return get<KVLayer>(name); }

OpType::OpType(const char* name, Make make, Workspace workspace) : make(make), workspace_(workspace) {
    op_types()[name] = this;
}

const OpType& OpType::of(const std::string& name) {
    const auto found = op_types().find(name);
    if (found == op_types().end()) throw std::invalid_argument("no native op is called " + name);
    return *found->second;
}

} // namespace octavo
