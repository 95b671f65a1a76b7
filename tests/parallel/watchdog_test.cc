// The watchdog with operations and hooks of the test's own; times are short, and upper bounds generous for busy
// machines.
#include "parallel/watchdog.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

namespace fenwick {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

struct Library {
    std::atomic<OperationStage> stage{OperationStage::kQueued};
    std::atomic<int> aborts{0};
    std::atomic<bool> abort_hangs{false};
    std::atomic<int> last_resorts{0};
    std::atomic<bool> faulty{false};

    Watchdog::Hooks hooks() {
        Watchdog::Hooks hooks;
        hooks.fault = [this]() -> std::optional<std::string> {
            if (faulty) return "remote process exited";
            return std::nullopt;
        };
        hooks.abort = [this] {
            ++aborts;
            while (abort_hangs) std::this_thread::sleep_for(milliseconds(1));
        };
        hooks.last_resort = [this](const std::string& /*reason*/) {
            ++last_resorts;
            abort_hangs = false;  // in production this does not return
        };
        return hooks;
    }
};

Step step_of(int layer, const char* part) {
    Step step{Activity::kPass, layer, 8192, {}};
    step.set_part(part);
    return step;
}

/// Waits for `condition`, for ten seconds at most.
template <class Condition>
bool comes_true(Condition condition) {
    for (int i = 0; i < 10000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
    return condition();
}

constexpr Watchdog::Times kTimes{milliseconds(100), milliseconds(2), milliseconds(200)};

}  // namespace

TEST_CASE("watchdog: an operation that runs past the deadline is aborted, with its peers and its step") {
    Library library;
    Watchdog dog(kTimes, library.hooks());
    dog.watch(step_of(3, "exchange, round 1"), {5, 7}, [&] { return library.stage.load(); });
    // Queued behind other work for longer than the deadline: nobody is late.
    std::this_thread::sleep_for(milliseconds(250));
    CHECK_FALSE(dog.failed());
    library.stage = OperationStage::kRunning;
    REQUIRE(comes_true([&] { return dog.failed(); }));
    REQUIRE_THAT(dog.failure().value(), Contains("rank(s) 5, 7") && Contains("layer 3 of the pass at token 8192") &&
                                            Contains("exchange, round 1"));
    REQUIRE(comes_true([&] { return library.aborts == 1; }));
    std::this_thread::sleep_for(milliseconds(300));
    CHECK(library.last_resorts == 0);  // the owner has asked: it noticed
}

TEST_CASE("watchdog: operations that end in time are forgotten, in order") {
    Library library;
    Watchdog dog(kTimes, library.hooks());
    std::atomic<int> asked{0};
    for (int i = 0; i < 50; ++i) {
        dog.watch(step_of(i, "halo"), {1}, [&] {
            ++asked;
            return OperationStage::kDone;
        });
    }
    REQUIRE(comes_true([&] { return asked == 50; }));
    std::this_thread::sleep_for(milliseconds(150));
    CHECK(asked == 50);
    CHECK_FALSE(dog.failure().has_value());
    CHECK(library.aborts == 0);
}

TEST_CASE("watchdog: a fault that the library reports ends operations at once, named by the oldest") {
    Library library;
    Watchdog dog({std::chrono::seconds(60), milliseconds(2), milliseconds(200)}, library.hooks());
    dog.watch(step_of(0, "halo"), {2}, [] { return OperationStage::kRunning; });
    dog.watch(step_of(1, "halo"), {3}, [] { return OperationStage::kQueued; });
    library.faulty = true;
    REQUIRE(comes_true([&] { return dog.failed(); }));
    CHECK_THAT(dog.failure().value(),
               Contains("remote process exited") && Contains("layer 0") && Contains("rank(s) 2"));
    CHECK(comes_true([&] { return library.aborts == 1; }));
}

TEST_CASE("watchdog: the last resort comes when the abort hangs") {
    Library library;
    library.abort_hangs = true;
    Watchdog dog(kTimes, library.hooks());
    dog.watch(step_of(0, "halo"), {1}, [] { return OperationStage::kRunning; });
    REQUIRE(comes_true([&] { return dog.failed(); }));
    (void)dog.failure();
    REQUIRE(comes_true([&] { return library.last_resorts == 1; }));
}

TEST_CASE("watchdog: the last resort comes when the owner stays stuck") {
    Library library;
    Watchdog dog(kTimes, library.hooks());
    dog.watch(step_of(0, "halo"), {1}, [] { return OperationStage::kRunning; });
    REQUIRE(comes_true([&] { return library.last_resorts == 1; }));  // nobody asked for the failure
    CHECK(library.aborts == 1);
}

TEST_CASE("steps read well and survive parts of any length") {
    CHECK(step_text({}) == "starting");
    CHECK(step_text({Activity::kWaiting, -1, 0, {}}) == "between passes");
    CHECK(step_text({Activity::kPass, -1, 4096, {}}) == "the pass at token 4096");
    Step step{Activity::kPass, 2, 0, {}};
    step.set_part(std::string(100, 'x'));
    CHECK(step_text(step) == "layer 2 of the pass at token 0, " + std::string(31, 'x'));
}

}  // namespace fenwick
