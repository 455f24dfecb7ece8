// Checks of the drivers of the packet engine: a failure names the seed that shows it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

inline uint64_t seed_of_run = 1;

#define CHECK(condition, ...)                                                             \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                   \
            std::printf(__VA_ARGS__);                                                     \
            std::printf("\nseed %llu\n", static_cast<unsigned long long>(seed_of_run));   \
            std::exit(1);                                                                 \
        }                                                                                 \
    } while (0)
