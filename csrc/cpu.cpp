#include "cpu.h"

#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace octavo {
namespace {

struct Features {
    bool avx2 = false, avxvnni = false, avx512vnni = false, dotprod = false;
};

#if defined(__x86_64__)
uint64_t enabled_state() { // XCR0: which registers the operating system saves
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t{high} << 32) | low;
}

Features detect() {
    Features f;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    const bool fma = c >> 12 & 1, osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!osxsave || !avx) return f;
    const uint64_t state = enabled_state();
    if ((state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    f.avx2 = (b >> 5 & 1) && fma && f16c;
    const bool f512 = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1, vnni = c >> 11 & 1;
    f.avx512vnni = f.avx2 && (state & 0xe6) == 0xe6 && f512 && dq && bw && vl && vnni;
    const uint32_t leaves = a;
    if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avxvnni = f.avx2 && (a >> 4 & 1);
    return f;
}
#elif defined(__aarch64__) && defined(__linux__)
Features detect() {
    Features f;
    f.dotprod = getauxval(AT_HWCAP) >> 20 & 1; // HWCAP_ASIMDDP
    return f;
}
#elif defined(__aarch64__) && defined(__APPLE__)
Features detect() {
    Features f;
    int has = 0;
    size_t size = sizeof has;
    f.dotprod = !sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) && has;
    return f;
}
#else
Features detect() { return {}; }
#endif

} // namespace

std::vector<const Kernels*> supported_kernels() {
    const Features f = detect();
    std::vector<const Kernels*> found;
    if (f.avx512vnni && kernels_avx512vnni()) found.push_back(kernels_avx512vnni());
    if (f.avxvnni && kernels_avxvnni()) found.push_back(kernels_avxvnni());
    if (f.avx2 && kernels_avx2()) found.push_back(kernels_avx2());
    if (f.dotprod && kernels_neon()) found.push_back(kernels_neon());
    found.push_back(kernels_generic());
    return found;
}

const Kernels* choose_kernels(const std::string& isa) {
    const auto found = supported_kernels();
    if (isa == "auto") return found.front();
    std::string names;
    for (const Kernels* k : found) {
        if (isa == k->name) return k;
        names += std::string(names.empty() ? "" : ", ") + k->name;
    }
    throw std::invalid_argument("this CPU does not run instruction set '" + isa + "' (it runs " + names + ")");
}

int64_t first_cache_bytes() {
    static const int64_t bytes = [] {
#ifdef _SC_LEVEL1_DCACHE_SIZE
        if (const long found = sysconf(_SC_LEVEL1_DCACHE_SIZE); found > 0) return static_cast<int64_t>(found);
#endif
        return int64_t{32} << 10;
    }();
    return bytes;
}

} // namespace octavo
