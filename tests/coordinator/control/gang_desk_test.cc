// Gangs without sockets: who may join, what a lease brings, and who is named when a rank goes.
#include "coordinator/control/gang_desk.h"

#include <thread>

#include "coordinator/idl/fenwick_constants.h"
#include "tests/coordinator/service/service_fixture.h"

using namespace fenwick;
using namespace fenwick::testing;

namespace {

class FakeLink final : public RankLink {
public:
    void send(const idl::ControlMessage& message) override { sent.push_back(message); }
    void close() override { closed = true; }
    void work(std::function<void()> work) override { work(); }
    [[nodiscard]] bool held_back() const override { return held; }

    /// The last message of its kind, which is taken off.
    [[nodiscard]] idl::ControlMessage take() {
        REQUIRE_FALSE(sent.empty());
        idl::ControlMessage message = sent.back();
        sent.pop_back();
        return message;
    }
    std::vector<idl::ControlMessage> sent;
    bool closed = false;
    bool held = false;
};

idl::Hello hello(std::int32_t rank, std::int32_t size, const std::string& gang = "gang-1") {
    idl::Hello hello;
    hello.controlVersion = idl::g_fenwick_constants.CONTROL_VERSION;
    hello.gangId = gang;
    hello.gangName = "one";
    hello.rank = rank;
    hello.worldSize = size;
    hello.host = "here";
    hello.pid = 100 + rank;
    hello.device = "cpu";
    hello.dtype = "fp32";
    return hello;
}

struct Desk : ServiceFixture {
    explicit Desk(const std::string& token = "")
        : ServiceFixture([&](ServeConfig& config) {
              config.heartbeat_seconds = 0.1;
              config.lost_seconds = 0.6;
              config.worker_token = token;
          }),
          desk(*service) {
        service->on_work([&] { desk.wake(); });
        service->on_revoked([&](const auto& keys, const std::string& reason) { desk.revoke(keys, reason); });
    }
    ~Desk() { service->stop(); }

    std::vector<std::shared_ptr<FakeLink>> join(std::int32_t size, const std::string& gang = "gang-1") {
        std::vector<std::shared_ptr<FakeLink>> links;
        for (std::int32_t rank = 0; rank < size; ++rank) {
            links.push_back(std::make_shared<FakeLink>());
            (void)desk.join(hello(rank, size, gang), links.back());
        }
        return links;
    }
    bool logged(const std::string& job, const std::string& text) {
        for (const idl::LogEntry& entry : service->read_logs({}, job, 0, 1000).entries) {
            if (entry.text.find(text) != std::string::npos) return true;
        }
        return false;
    }

    GangDesk desk;
};

}  // namespace

TEST_CASE("desk: who may join") {
    Desk fixture("a long enough token");
    const auto link = std::make_shared<FakeLink>();
    const auto refused = [&](const std::function<void(idl::Hello&)>& change) {
        idl::Hello wrong = hello(0, 1);
        wrong.token = "a long enough token";
        change(wrong);
        return fault_of([&] { (void)fixture.desk.join(wrong, link); });
    };
    CHECK(refused([](idl::Hello& h) { h.token = "another"; }) == ServiceCode::UNAUTHENTICATED);
    CHECK(refused([](idl::Hello& h) { h.token = ""; }) == ServiceCode::UNAUTHENTICATED);
    CHECK(refused([](idl::Hello& h) { h.controlVersion = 99; }) == ServiceCode::VERSION_MISMATCH);
    CHECK(refused([](idl::Hello& h) { h.rank = 1; }) == ServiceCode::INVALID_ARGUMENT);
    CHECK(refused([](idl::Hello& h) { h.device = "abacus"; }) == ServiceCode::INVALID_ARGUMENT);
    idl::Hello first = hello(0, 2);
    first.token = "a long enough token";
    const idl::Welcome welcome = fixture.desk.join(first, link);
    CHECK(welcome.heartbeatMs == 100);
    CHECK(welcome.timeoutMs == 600);
    CHECK(refused([](idl::Hello& h) { h.worldSize = 3; }) == ServiceCode::CONFLICT);
}

TEST_CASE("desk: a lease from Ready to its result, and the next document") {
    Desk fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(10, 1)}, {"b", text_of(1, 2)}}));
    const auto links = fixture.join(2);
    FakeLink& leader = *links[0];
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    const idl::Grant grant = leader.take().grant;
    CHECK(grant.customId == "a");
    CHECK(grant.tokens == 10);
    CHECK(grant.limit == 10);
    idl::TokensRequest ask;
    ask.lease = grant.lease;
    ask.first = 3;
    ask.count = 7;
    fixture.desk.handle("gang-1", as_message(ask));
    CHECK(leader.take().tokens.ids.size() == 28);
    idl::Losses losses;
    losses.lease = grant.lease;
    losses.first = 0;
    losses.nll = loss_bytes(9, 1);
    fixture.desk.handle("gang-1", as_message(losses));
    idl::GiveBack back;
    back.lease = grant.lease;
    back.reason = idl::ReturnReason::DONE;
    back.position = 10;
    fixture.desk.handle("gang-1", as_message(back));
    CHECK(leader.take().__isset.closed);
    // The old key is worth nothing now.
    fixture.desk.handle("gang-1", as_message(losses));
    CHECK(leader.take().__isset.revoked);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    back.lease = leader.take().grant.lease;
    back.position = 1;
    fixture.desk.handle("gang-1", as_message(back));
    CHECK(fixture.wait_over(job.id).requestCounts.completed == 2);
}

TEST_CASE("desk: a silent rank is named in the job's log and in the list, and the document goes on") {
    Desk fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(9000, 1)}}));
    const auto links = fixture.join(3);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    const idl::Grant grant = links[0]->take().grant;
    idl::Heartbeat beat;
    beat.step = "pass at token 4096";
    fixture.desk.at_step("gang-1", 2, beat);
    const auto begun = std::chrono::steady_clock::now();
    while (!links[1]->closed) {
        REQUIRE(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
        fixture.desk.heard("gang-1", 0, links[0].get());
        fixture.desk.heard("gang-1", 1, links[1].get());
        fixture.desk.tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    CHECK(fixture.logged(job.id, "rank 2 of gang one (process 102 on here) is silent"));
    CHECK(fixture.logged(job.id, "rank 2 of gang one (process 102 on here) is lost: connected, but silent"));
    CHECK(fixture.logged(job.id, "pass at token 4096"));
    CHECK(links[0]->take().stop.reason.find("rank 2 of gang one") != std::string::npos);
    fixture.desk.tick();
    const idl::GangInfo gang = fixture.service->store().gang("gang-1");
    CHECK(gang.state == idl::GangState::LOST);
    CHECK(gang.ranks.at(2).state == idl::RankState::LOST);
    CHECK(gang.ranks.at(1).state == idl::RankState::CONNECTED);
    CHECK(fixture.service->job({}, job.id).requestCounts.queued == 1);

    // The lost gang's last words are fenced; another gang gets the document under a later epoch.
    const auto others = fixture.join(1, "gang-2");
    fixture.desk.handle("gang-2", as_message(idl::Ready()));
    const idl::Grant second = others[0]->take().grant;
    CHECK(second.lease.document == grant.lease.document);
    CHECK(second.lease.epoch > grant.lease.epoch);
    idl::Losses late;
    late.lease = grant.lease;
    late.nll = loss_bytes(4096, 9);
    fixture.desk.handle("gang-1", as_message(late));
    CHECK(links[0]->take().__isset.revoked);
}

TEST_CASE("desk: a rank whose connection ends is named at once, and when it does not come back its gang is lost") {
    Desk fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(9000, 1)}}));
    const auto links = fixture.join(2);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    fixture.desk.left("gang-1", 1, links[1].get(), "its connection was closed");
    CHECK(fixture.logged(job.id, "rank 1 of gang one (process 101 on here): its connection was closed"));
    fixture.desk.tick();
    CHECK(fixture.service->store().gang("gang-1").ranks.at(1).state == idl::RankState::DISCONNECTED);
    // It comes back in time, and nothing is lost.
    const auto again = std::make_shared<FakeLink>();
    (void)fixture.desk.join(hello(1, 2), again);
    CHECK(fixture.service->job({}, job.id).requestCounts.running == 1);
    // Rank 0's connection carries the lease: with it the lease ends, and the document is queued.
    fixture.desk.left("gang-1", 0, links[0].get(), "its connection was closed");
    CHECK(fixture.service->job({}, job.id).requestCounts.running == 0);
    CHECK(fixture.service->job({}, job.id).requestCounts.queued == 1);
}

TEST_CASE("desk: frames that wait for our own work are no silence") {
    Desk fixture;
    const auto links = fixture.join(1);
    links[0]->held = true;
    const auto begun = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(1500)) {
        fixture.desk.tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    CHECK_FALSE(links[0]->closed);
}

TEST_CASE("desk: a gang without the model is not asked again, and a drained one gets nothing more") {
    Desk fixture;
    (void)fixture.submit(ServiceFixture::spec_of({{"a", text_of(10, 1)}}));
    const auto links = fixture.join(1);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    idl::GiveBack back;
    back.lease = links[0]->take().grant.lease;
    back.reason = idl::ReturnReason::REFUSED;
    back.message = "there is no such model here";
    fixture.desk.handle("gang-1", as_message(back));
    CHECK(links[0]->take().__isset.closed);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    CHECK(links[0]->sent.empty());

    const auto others = fixture.join(1, "gang-2");
    CHECK(fixture.desk.drain("gang-2"));
    CHECK(others[0]->take().__isset.drain);
    fixture.desk.handle("gang-2", as_message(idl::Ready()));
    CHECK(others[0]->sent.empty());
    CHECK_FALSE(fixture.desk.drain("gang-3"));
    fixture.desk.said_bye("gang-2", 0, "it was drained");
    fixture.desk.tick();
    CHECK(fixture.service->store().gang("gang-2").state == idl::GangState::ENDED);
}

TEST_CASE("desk: a gang that breaks the protocol is given up, and a bad document is not its fault") {
    Desk fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(10, 1)}, {"b", text_of(10, 2)}}));
    const auto links = fixture.join(1);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    idl::Losses losses;
    losses.lease = links[0]->take().grant.lease;
    losses.nll = loss_bytes(9, std::numeric_limits<float>::infinity());
    fixture.desk.handle("gang-1", as_message(losses));
    CHECK(links[0]->take().revoked.reason.find("the loss of token 1 is inf") != std::string::npos);
    CHECK(fixture.service->job({}, job.id).requestCounts.failed == 1);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    losses.lease = links[0]->take().grant.lease;
    losses.first = 5;
    fixture.desk.handle("gang-1", as_message(losses));
    CHECK(links[0]->closed);
    CHECK(fixture.logged(job.id, "it broke the protocol"));
    CHECK(fixture.service->job({}, job.id).requestCounts.queued == 1);
}

TEST_CASE("desk: cancelling a job revokes its lease") {
    Desk fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(9000, 1)}}));
    const auto links = fixture.join(1);
    fixture.desk.handle("gang-1", as_message(idl::Ready()));
    const idl::Grant grant = links[0]->take().grant;
    (void)fixture.service->cancel({}, job.id);
    CHECK(links[0]->take().revoked.lease == grant.lease);
    CHECK(fixture.wait_over(job.id).state == idl::JobState::CANCELLED);
    CHECK(fixture.desk.leases() == 0);
}
