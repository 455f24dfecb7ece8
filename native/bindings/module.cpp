#include "bind.hpp"

NB_MODULE(_native, m) {
    m.doc() = "The compiled core of farstep: wire codec, transport endpoint, reduction kernels and packet engine.";
    bind_wire(m);
    bind_reduce(m);
    bind_endpoint(m);
    bind_collective(m);
    bind_sim(m);
}
