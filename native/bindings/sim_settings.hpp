// Reads the engine's settings off Python dictionaries; what is not known there is refused by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <set>
#include <string>

#include "farstep/sim/any_engine.hpp"

/// A dictionary of numbers, each of which may be read once.
class __attribute__((visibility("hidden"))) Knobs {
public:
    explicit Knobs(nanobind::dict values) : values_(std::move(values)) {}
    template <class T>
    void read(const char* name, T& out) {
        known_.insert(name);
        if (!values_.contains(name)) return;
        const nanobind::object value = values_[name];
        try {
            out = nanobind::cast<T>(value);
        } catch (const nanobind::cast_error&) {
            const std::string given = nanobind::cast<std::string>(nanobind::str(value));
            throw nanobind::value_error((std::string(name) + " = " + given + ": is of another type than this setting, or beyond its range").c_str());
        }
    }
    /// Refuses what nobody asked for.
    void finish() const {
        for (const auto& [key, value] : values_)
            if (const std::string name = nanobind::cast<std::string>(key); !known_.contains(name))
                throw nanobind::value_error(("the packet engine has no setting " + name).c_str());
    }

private:
    nanobind::dict values_;
    std::set<std::string> known_;
};

/// What MRC and the transports of UET let one set of NSCC.
inline void read_congestion(Knobs& k, farstep::NsccConfig& n) {
    k.read("quick_adapt", n.quick_adapt);
    k.read("max_cwnd_bytes", n.max_cwnd_bytes);
    k.read("initial_cwnd_bytes", n.initial_cwnd_bytes);
    k.read("target_delay_ns", n.target_delay_ns);
    k.read("alpha", n.alpha);
    k.read("fi_bytes", n.fi_bytes);
    k.read("eta_bytes", n.eta_bytes);
    k.read("fi_scale", n.fi_scale);
    k.read("gamma", n.gamma);
    k.read("max_md_jump", n.max_md_jump);
    k.read("delay_weight", n.delay_weight);
    k.read("qa_gate", n.qa_gate);
}

/// Engines of other transports than MRC; null where the name is not known. Reads their own knobs.
std::unique_ptr<farstep::sim::AnyEngine> make_rival_engine(const std::string& transport, const farstep::sim::FabricColumns& columns,
                                                           const farstep::sim::EngineSettings& settings, Knobs& knobs);
