// Checks the reduction kernels against plain scalar arithmetic on random bit patterns.
// Usage: reduce_test [seed]
#include "farstep/reduce.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

using namespace farstep;

namespace {

std::uint64_t state = 1;

std::uint64_t next_random() {
    state += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void require(bool holds, const char* what, unsigned long long detail) {
    if (!holds) {
        std::printf("FAILED: %s (%llu)\n", what, detail);
        std::exit(1);
    }
}

/// binary16 to double by its definition.
double half_value(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const int fraction = bits & 1023;
    double value = 0;
    if (exponent == 31) {
        value = fraction != 0 ? NAN : INFINITY;
    } else if (exponent == 0) {
        value = std::ldexp(fraction, -24);
    } else {
        value = std::ldexp(1024 + fraction, exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -value : value;
}

void check_half_round_trip() {
    using reduction::Float16;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float wide = Float16::widen({static_cast<std::uint16_t>(bits)});
        const double exact = half_value(static_cast<std::uint16_t>(bits));
        if (std::isnan(exact)) {
            require(std::isnan(wide), "half NaN widens to NaN", bits);
            require((Float16::narrow(wide).bits & 0x7fff) > 0x7c00, "NaN narrows to NaN", bits);
            continue;
        }
        require(static_cast<double>(wide) == exact, "half widens exactly", bits);
        require(Float16::narrow(wide).bits == bits, "half round trip", bits);
    }
}

/// The nearest half to a float, ties to even, found among the neighbours of the result.
void check_half_rounding() {
    using reduction::Float16;
    for (int i = 0; i < 200000; ++i) {
        // Exponents around the range of halves, subnormals and overflow included.
        const std::uint32_t exponent = 127 - 27 + next_random() % 45;
        const std::uint32_t bits =
            static_cast<std::uint32_t>(next_random() & 0x807fffffu) | (exponent << 23);
        const float value = reduction::float_of(bits);
        const std::uint16_t got = Float16::narrow(value).bits;
        const double magnitude = std::fabs(static_cast<double>(value));
        const std::uint16_t got_magnitude = got & 0x7fff;
        if (magnitude >= 65520.0) {
            require(got_magnitude == 0x7c00, "overflow rounds to infinity", bits);
            continue;
        }
        const double error = std::fabs(half_value(got_magnitude) - magnitude);
        const double above = std::fabs(half_value(static_cast<std::uint16_t>(got_magnitude + 1)) - magnitude);
        require(error < above || (error == above && (got_magnitude & 1) == 0), "rounds to nearest", bits);
        if (got_magnitude > 0) {
            const double below = std::fabs(half_value(static_cast<std::uint16_t>(got_magnitude - 1)) - magnitude);
            require(error < below || (error == below && (got_magnitude & 1) == 0), "rounds to nearest", bits);
        }
    }
}

/// Every half as one operand, special ones and random ones as the other: the processor's own conversion and the portable
/// arithmetic give the same bits, for counts that are no multiple of its width too.
void check_half_kernels() {
    using reduction::Float16;
    constexpr std::size_t kAll = 0x10000;
    const std::uint16_t others[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff,
                                    0x7c00, 0xfc00, 0x7c01, 0xfe00, 0xffff, 0x5555, 0x1234};
    const reduction::Combine portable[] = {reduction::float16_sum, reduction::float16_product,
                                           reduction::float16_minimum, reduction::float16_maximum};
    std::vector<Float16> left(kAll), right(kAll), fast(kAll), slow(kAll);
    for (std::size_t i = 0; i < kAll; ++i) left[i].bits = static_cast<std::uint16_t>(i);
    for (std::size_t round = 0; round < 2 * std::size(others); ++round) {
        for (Float16& x : right)
            x.bits = round < std::size(others) ? others[round] : static_cast<std::uint16_t>(next_random());
        for (int op = 0; op < 4; ++op)
            for (bool swapped : {false, true}) {
                const Float16 *a = swapped ? right.data() : left.data(), *b = swapped ? left.data() : right.data();
                combine_kernel(ElementType::float16, static_cast<Reduction>(op))(fast.data(), a, b, kAll - round % 8);
                portable[op](slow.data(), a, b, kAll - round % 8);
                for (std::size_t i = 0; i < kAll - round % 8; ++i)
                    require(fast[i].bits == slow[i].bits, "half kernels agree", i << 8 | static_cast<unsigned>(op));
            }
        fast = slow = left;
        require(divide_in_place(ElementType::float16, fast.data(), kAll - round % 8, 3), "divides halves", round);
        reduction::float16_divide(slow.data(), kAll - round % 8, 3);
        require(std::memcmp(fast.data(), slow.data(), 2 * kAll) == 0, "half division agrees", round);
    }
    require(combine_kernel(ElementType::float16, Reduction::bit_or) == nullptr, "no bitwise halves", 0);
}

template <class T>
T scalar(Reduction op, T a, T b) {
    switch (op) {
        case Reduction::sum: return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
        case Reduction::product: return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
        case Reduction::minimum: return b < a ? b : a;
        case Reduction::maximum: return a < b ? b : a;
        case Reduction::bit_and: return static_cast<T>(a & b);
        case Reduction::bit_or: return static_cast<T>(a | b);
        default: return static_cast<T>(a ^ b);
    }
}

template <class T>
void check_integers(ElementType type) {
    for (int op = 0; op < num_reductions; ++op) {
        for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{1000}}) {
            std::vector<T> left(count), right(count), out(count);
            for (std::size_t i = 0; i < count; ++i) {
                left[i] = static_cast<T>(next_random());
                right[i] = static_cast<T>(next_random());
            }
            const auto kernel = combine_kernel(type, static_cast<Reduction>(op));
            kernel(out.data(), left.data(), right.data(), count);
            for (std::size_t i = 0; i < count; ++i) {
                require(out[i] == scalar(static_cast<Reduction>(op), left[i], right[i]), "integer", i);
            }
            kernel(left.data(), left.data(), right.data(), count);
            require(count == 0 || std::memcmp(left.data(), out.data(), count * sizeof(T)) == 0, "in place", count);
        }
    }
}

void check_nan_is_kept() {
    const float nan = NAN;
    float out = 0;
    const float one = 1;
    for (Reduction op : {Reduction::minimum, Reduction::maximum}) {
        const auto kernel = combine_kernel(ElementType::float32, op);
        kernel(&out, &nan, &one, 1);
        require(std::isnan(out), "NaN on the left", 0);
        kernel(&out, &one, &nan, 1);
        require(std::isnan(out), "NaN on the right", 0);
    }
    require(combine_kernel(ElementType::float32, Reduction::bit_and) == nullptr, "no bitwise floats", 0);
}

void check_division() {
    std::vector<double> values(100);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    require(divide_in_place(ElementType::float64, values.data(), values.size(), 3), "divides", 0);
    for (std::size_t i = 0; i < values.size(); ++i) require(values[i] == static_cast<double>(i) / 3, "quotient", i);
    require(!divide_in_place(ElementType::int32, values.data(), 1, 3), "refuses integers", 0);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) state = std::strtoull(argv[1], nullptr, 10);
    std::printf("seed %llu\n", static_cast<unsigned long long>(state));
    check_half_round_trip();
    check_half_rounding();
    check_half_kernels();
    check_integers<std::int8_t>(ElementType::int8);
    check_integers<std::int16_t>(ElementType::int16);
    check_integers<std::int32_t>(ElementType::int32);
    check_integers<std::int64_t>(ElementType::int64);
    check_integers<std::uint8_t>(ElementType::uint8);
    check_nan_is_kept();
    check_division();
    std::printf("reduce_test: ok\n");
    return 0;
}
