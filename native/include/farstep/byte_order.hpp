// Integers in memory in a stated byte order, at any alignment.
#pragma once

#include <cstdint>
#include <cstring>

namespace farstep::wire {

namespace detail {
template <class T>
inline T load(const uint8_t* p) noexcept {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
inline void store(uint8_t* p, T v) noexcept {
    std::memcpy(p, &v, sizeof v);
}
inline constexpr bool kLittle = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
}  // namespace detail

inline uint16_t load_be16(const uint8_t* p) noexcept {
    const uint16_t v = detail::load<uint16_t>(p);
    return detail::kLittle ? __builtin_bswap16(v) : v;
}
inline uint32_t load_be24(const uint8_t* p) noexcept {
    return static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 8 | p[2];
}
inline uint32_t load_be32(const uint8_t* p) noexcept {
    const uint32_t v = detail::load<uint32_t>(p);
    return detail::kLittle ? __builtin_bswap32(v) : v;
}
inline uint64_t load_be64(const uint8_t* p) noexcept {
    const uint64_t v = detail::load<uint64_t>(p);
    return detail::kLittle ? __builtin_bswap64(v) : v;
}
inline uint32_t load_le32(const uint8_t* p) noexcept {
    const uint32_t v = detail::load<uint32_t>(p);
    return detail::kLittle ? v : __builtin_bswap32(v);
}
inline void store_be16(uint8_t* p, uint16_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap16(v) : v); }
inline void store_be24(uint8_t* p, uint32_t v) noexcept {
    p[0] = static_cast<uint8_t>(v >> 16);
    p[1] = static_cast<uint8_t>(v >> 8);
    p[2] = static_cast<uint8_t>(v);
}
inline void store_be32(uint8_t* p, uint32_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap32(v) : v); }
inline void store_be64(uint8_t* p, uint64_t v) noexcept { detail::store(p, detail::kLittle ? __builtin_bswap64(v) : v); }
inline void store_le32(uint8_t* p, uint32_t v) noexcept { detail::store(p, detail::kLittle ? v : __builtin_bswap32(v)); }

}  // namespace farstep::wire
