// The optimiser over ranks: its slices against AdamW on one rank, what decays, and norms.
#include "worker/training/sharded_optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "parallel/thread_world.h"

using namespace fenwick;

namespace {

/// Parameters of odd sizes, decayed and not, as a model would own them.
struct Owner {
    std::vector<std::vector<float>> memory;
    std::vector<Parameter> parameters;

    Owner() {
        std::mt19937 random(11);
        std::uniform_real_distribution<float> draw(-1.0F, 1.0F);
        for (const std::int64_t size : {7, 12, 1, 30, 5, 5}) {
            std::vector<float>& values = memory.emplace_back(static_cast<std::size_t>(size));
            for (float& value : values) value = draw(random);
        }
        for (std::size_t i = 0; i < memory.size(); ++i) {
            const auto size = static_cast<std::int64_t>(memory[i].size());
            parameters.push_back({"p" + std::to_string(i), {size}, memory[i].data(), size, i % 3 != 0});
        }
    }

    [[nodiscard]] std::vector<float> flat() const {
        std::vector<float> all;
        for (const std::vector<float>& values : memory) all.insert(all.end(), values.begin(), values.end());
        return all;
    }
};

/// Multiples of 1 / 64: their sums over a few ranks are exact in fp32, in whatever order.
void fill_gradients(Gradients& gradients, int step, int rank, int ranks) {
    std::mt19937 random(static_cast<unsigned>(100 + step));
    for (float& value : gradients.all()) {
        const int whole = static_cast<int>(random() % 129) - 64;
        const int share = rank == 0 ? whole - (ranks - 1) * 3 : 3;
        value = static_cast<float>(share) / 64.0F;
    }
}

struct Run {
    std::vector<float> values;
    std::vector<double> norms;
};

Run run(int ranks, int steps, const AdamW& hyper) {
    Run result;
    run_thread_ranks(ranks, [&](Communicator& world) {
        Owner owner;
        Gradients gradients(owner.parameters);
        ShardedOptimizer optimizer(owner.parameters, world, 1);
        for (int step = 1; step <= steps; ++step) {
            fill_gradients(gradients, step, world.rank(), world.size());
            const double norm = optimizer.reduce(gradients);
            optimizer.step(hyper, step, 0.5F, gradients);
            if (world.rank() == 0) result.norms.push_back(norm);
        }
        if (world.rank() == world.size() - 1) result.values = owner.flat();
    });
    return result;
}

}  // namespace

TEST_CASE("sharded optimiser: the same bits on any number of ranks") {
    const AdamW hyper{0.1, 0.9, 0.95, 1e-8, 0.2};
    const Run one = run(1, 3, hyper);
    for (const int ranks : {2, 3, 5, 8, 70}) {  // 70: more ranks than parameters, with empty slices
        INFO(ranks << " ranks");
        const Run many = run(ranks, 3, hyper);
        CHECK(many.values == one.values);
        REQUIRE(many.norms.size() == 3);
        // Sums of squares in double, in another grouping.
        for (std::size_t i = 0; i < 3; ++i) CHECK(many.norms[i] == Approx(one.norms[i]).epsilon(1e-14));
    }
}

TEST_CASE("sharded optimiser: AdamW by hand, CASES H3") {
    const std::vector<float> steps = {1.0F, -2.0F, 0.5F, 3.0F};
    for (const int ranks : {1, 2}) {
        std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks));
        std::vector<double> norms;
        run_thread_ranks(ranks, [&](Communicator& world) {
            std::vector<float> memory(2, 0.0F);
            const std::vector<Parameter> parameters = {{"w", {2}, memory.data(), 2, false}};
            Gradients gradients(parameters);
            ShardedOptimizer optimizer(parameters, world, 1);
            const AdamW hyper{0.1, 0.9, 0.95, 1e-8, 0.0};
            std::int64_t update = 0;
            for (const float gradient : steps) {
                for (float& value : gradients.all()) value = world.rank() == 0 ? gradient : 0.0F;
                const double norm = optimizer.reduce(gradients);
                if (world.rank() == 0) norms.push_back(norm);
                optimizer.step(hyper, ++update, 1.0F, gradients);
            }
            values[static_cast<std::size_t>(world.rank())] = memory;
        });
        for (std::size_t i = 0; i < steps.size(); ++i) {
            CHECK(norms[i] == Approx(std::abs(static_cast<double>(steps[i])) * std::sqrt(2.0)).epsilon(1e-14));
        }
        for (const std::vector<float>& rank : values) {
            for (const float value : rank) CHECK(static_cast<double>(value) == Approx(-0.0886554).epsilon(1e-5));
        }
    }
}

TEST_CASE("sharded optimiser: without a gradient only what decays changes") {
    const Owner before;
    const std::vector<float> old_values = before.flat();
    for (const int ranks : {1, 3}) {
        std::vector<float> values;
        run_thread_ranks(ranks, [&](Communicator& world) {
            Owner owner;
            Gradients gradients(owner.parameters);
            ShardedOptimizer optimizer(owner.parameters, world, 1);
            (void)optimizer.reduce(gradients);
            optimizer.step({0.1, 0.9, 0.95, 1e-8, 0.5}, 1, 1.0F, gradients);
            if (world.rank() == 0) values = owner.flat();
        });
        std::size_t at = 0;
        for (const Parameter& parameter : before.parameters) {
            for (std::int64_t i = 0; i < parameter.size; ++i, ++at) {
                INFO(parameter.name << "[" << i << "] on " << ranks << " ranks");
                if (parameter.decayed) {
                    // One product and one difference in fp32.
                    CHECK(static_cast<double>(values[at]) ==
                          Approx(static_cast<double>(old_values[at]) * (1.0 - 0.1 * 0.5)).epsilon(4 * 6e-8));
                } else {
                    CHECK(values[at] == old_values[at]);
                }
            }
        }
    }
}

TEST_CASE("sharded optimiser: a gradient that is not finite shows in the norm on every rank") {
    std::vector<double> norms(3, 0.0);
    run_thread_ranks(3, [&](Communicator& world) {
        Owner owner;
        Gradients gradients(owner.parameters);
        ShardedOptimizer optimizer(owner.parameters, world, 1);
        if (world.rank() == 1) gradients.all()[59] = std::numeric_limits<float>::infinity();
        norms[static_cast<std::size_t>(world.rank())] = optimizer.reduce(gradients);
    });
    for (const double norm : norms) CHECK_FALSE(std::isfinite(norm));
}
