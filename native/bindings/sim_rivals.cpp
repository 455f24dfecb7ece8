// Engines of the transports MRC is compared with.
#include "sim_settings.hpp"

std::unique_ptr<farstep::sim::AnyEngine> make_rival_engine(const std::string&, const farstep::sim::FabricColumns&,
                                                           const farstep::sim::EngineSettings&, Knobs&) {
    return nullptr;
}
