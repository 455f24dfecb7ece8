// Engines of the transports MRC is compared with.
#include <string>
#include <utility>

#include "farstep/sim/rivals/adaptive.hpp"
#include "farstep/sim/rivals/ndp.hpp"
#include "farstep/sim/rivals/rival_transport.hpp"
#include "farstep/sim/rivals/roce.hpp"
#include "farstep/sim/rivals/tcp.hpp"
#include "farstep/sim/rivals/uet.hpp"
#include "sim_settings.hpp"

using namespace farstep::sim;

namespace {

// A choice by name; what is not one of the names is refused with all of them.
template <class E, size_t N>
void read_choice(Knobs& k, const char* name, const std::pair<const char*, E> (&choices)[N], E& out) {
    std::string chosen;
    k.read(name, chosen);
    if (chosen.empty()) return;
    std::string valid;
    for (const auto& [word, value] : choices) {
        if (chosen == word) {
            out = value;
            return;
        }
        valid += (valid.empty() ? "" : ", ") + std::string(word);
    }
    throw nanobind::value_error((std::string(name) + " = " + chosen + "; valid: " + valid).c_str());
}

template <class P>
void read_common(Knobs& k, const EngineSettings& e, RivalSettings<P>& s) {
    s.seed = e.fabric.seed;
    k.read("path_rtt_ns", s.base_rtt_ns);
    k.read("answer_paths", s.answer_paths);
    k.read("pacer_share", s.pacer_share);
    k.read("xoff_packets", s.xoff_packets);
    k.read("xon_packets", s.xon_packets);
    k.read("max_messages", s.protocol.wire.max_messages);
}
void read_choice_of_path(Knobs& k, PathChoiceConfig& c) {
    read_choice(k, "spread",
                {{"oblivious", Spread::Oblivious},
                 {"bitmap", Spread::Bitmap},
                 {"reps", Spread::Reps},
                 {"mixed", Spread::Mixed},
                 {"permutation", Spread::Permutation},
                 {"random", Spread::Random}},
                c.spread);
    k.read("ecn_penalty", c.ecn_penalty);
    k.read("nack_penalty", c.nack_penalty);
    k.read("timeout_penalty", c.timeout_penalty);
    k.read("max_penalty", c.max_penalty);
    k.read("recycled_paths", c.recycled);
    k.read("freeze_ns", c.freeze_ns);
    k.read("explore_packets", c.explore);
}

template <class T>
std::unique_ptr<AnyEngine> engine(const FabricColumns& c, const EngineSettings& e, const typename T::Settings& s) {
    return std::make_unique<EngineOf<T>>(c, e, s);
}

std::unique_ptr<AnyEngine> uet(const FabricColumns& c, const EngineSettings& e, Knobs& k) {
    RivalSettings<UetRival> s;
    read_common(k, e, s);
    UetConfig& u = s.protocol;
    u.nscc.trimming = e.fabric.trimming;
    k.read("entropies", u.paths.per_plane);
    read_choice_of_path(k, u.choice);
    k.read("sender_window", u.sender_window);
    k.read("receiver_credit", u.receiver_credit);
    k.read("ack_bytes", u.ack_bytes);
    k.read("credit_window_bytes", u.max_window_bytes);
    k.read("credit_packets", u.credit_packets);
    k.read("idle_credit", u.idle_credit);
    k.read("rto_ns", u.rto_ns);
    k.read("span_packets", u.span_packets);
    farstep::NsccConfig& n = u.nscc;
    read_congestion(k, n);
    k.read("qa_threshold_ns", n.qa_threshold_ns);
    k.read("qa_delay_needs_mark", n.qa_delay_needs_mark);
    return engine<RivalTransport<UetRival>>(c, e, s);
}

std::unique_ptr<AnyEngine> ndp(const FabricColumns& c, const EngineSettings& e, Knobs& k) {
    RivalSettings<NdpRival> s;
    read_common(k, e, s);
    s.protocol.paths.is_hashed = false;
    k.read("max_paths", s.protocol.paths.per_plane);
    read_choice_of_path(k, s.protocol.choice);
    k.read("initial_packets", s.protocol.initial_packets);
    k.read("rto_ns", s.protocol.rto_ns);
    k.read("span_packets", s.protocol.span_packets);
    return engine<RivalTransport<NdpRival>>(c, e, s);
}

std::unique_ptr<AnyEngine> tcp(const FabricColumns& c, const EngineSettings& e, Knobs& k) {
    RivalSettings<TcpRival> s;
    s.answer_paths = 1;
    read_common(k, e, s);
    TcpConfig& t = s.protocol;
    t.paths.per_plane = 1;
    read_choice(k, "growth", {{"reno", TcpGrowth::Reno}, {"cubic", TcpGrowth::Cubic}, {"dctcp", TcpGrowth::Dctcp}}, t.growth);
    k.read("initial_packets", t.initial_packets);
    k.read("max_packets", t.max_packets);
    k.read("duplicate_threshold", t.duplicate_threshold);
    k.read("min_rto_ns", t.min_rto_ns);
    k.read("max_rto_ns", t.max_rto_ns);
    k.read("ack_packets", t.ack_packets);
    k.read("ack_delay_ns", t.ack_delay_ns);
    k.read("ecn", t.ecn);
    k.read("cubic_c", t.cubic_c);
    k.read("cubic_beta", t.cubic_beta);
    k.read("dctcp_g", t.dctcp_g);
    return engine<RivalTransport<TcpRival>>(c, e, s);
}

std::unique_ptr<AnyEngine> roce(const FabricColumns& c, const EngineSettings& e, Knobs& k) {
    RivalSettings<RoceRival> s;
    s.answer_paths = 1;
    read_common(k, e, s);
    RoceConfig& r = s.protocol;
    bool pfc = true;
    k.read("pfc", pfc);
    k.read("queue_pairs", r.queue_pairs);
    k.read("ack_packets", r.ack_packets);
    k.read("window_packets", r.window_packets);
    k.read("rto_ns", r.rto_ns);
    k.read("recovery_ns", r.recovery_ns);
    k.read("halves_on_nack", r.halves_on_nack);
    k.read("dcqcn", r.dcqcn.enabled);
    k.read("notify_interval_ns", r.dcqcn.notify_interval_ns);
    k.read("alpha_timer_ns", r.dcqcn.alpha_timer_ns);
    k.read("rate_timer_ns", r.dcqcn.rate_timer_ns);
    k.read("byte_counter_bytes", r.dcqcn.byte_counter_bytes);
    k.read("dcqcn_g", r.dcqcn.g);
    k.read("fast_recovery", r.dcqcn.fast_recovery);
    k.read("additive_bytes_per_s", r.dcqcn.additive_bytes_per_s);
    k.read("hyper_bytes_per_s", r.dcqcn.hyper_bytes_per_s);
    k.read("min_bytes_per_s", r.dcqcn.min_bytes_per_s);
    if (r.queue_pairs < 1 || r.queue_pairs > kMaxQueuePairs)
        throw nanobind::value_error(("queue_pairs = " + std::to_string(r.queue_pairs) + "; valid: 1 to " + std::to_string(kMaxQueuePairs)).c_str());
    r.paths.per_plane = r.queue_pairs;
    if (pfc) return engine<RivalTransport<RoceRival, true>>(c, e, s);
    return engine<RivalTransport<RoceRival>>(c, e, s);
}

std::unique_ptr<AnyEngine> adaptive(const FabricColumns& c, const EngineSettings& e, Knobs& k) {
    RivalSettings<AdaptiveRival> s;
    read_common(k, e, s);
    AdaptiveConfig& a = s.protocol;
    a.paths.per_plane = 1;
    k.read("target_delay_ns", a.target_delay_ns);
    k.read("additive_packets", a.additive_packets);
    k.read("decrease", a.decrease);
    k.read("max_decrease", a.max_decrease);
    k.read("ack_packets", a.ack_packets);
    k.read("failover_ns", a.failover_ns);
    k.read("retry_ns", a.retry_ns);
    k.read("rto_ns", a.rto_ns);
    k.read("span_packets", a.span_packets);
    return engine<RivalTransport<AdaptiveRival, true, true>>(c, e, s);
}

}  // namespace

std::unique_ptr<AnyEngine> make_rival_engine(const std::string& transport, const FabricColumns& columns, const EngineSettings& settings,
                                             Knobs& knobs) {
    if (transport == "uet") return uet(columns, settings, knobs);
    if (transport == "ndp") return ndp(columns, settings, knobs);
    if (transport == "tcp") return tcp(columns, settings, knobs);
    if (transport == "roce") return roce(columns, settings, knobs);
    if (transport == "adaptive-routing") return adaptive(columns, settings, knobs);
    return nullptr;
}
