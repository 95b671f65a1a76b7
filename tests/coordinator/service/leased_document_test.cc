// The coordinator's side of a lease: what may come in, in which order, and what becomes of it.
#include "coordinator/service/leased_document.h"

#include <limits>

#include "core/fenwick.h"
#include "core/hash.h"
#include "tests/coordinator/service/service_fixture.h"

using namespace fenwick;
using namespace fenwick::testing;

namespace {

std::string hash_of(const std::string& bytes) {
    Hasher hasher;
    hasher.update(bytes);
    return hasher.hex();
}

idl::SavePoint point_at(std::int64_t position, const std::string& state) {
    idl::SavePoint point;
    point.position = position;
    point.stateBytes = std::ssize(state);
    point.stateHash = hash_of(state);
    return point;
}

}  // namespace

TEST_CASE("lease: losses in order become a result, once") {
    ServiceFixture fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(5000, 1)}}));
    LeasedDocument lease = fixture.lease();
    const std::string ids = lease.read_tokens(0, 5000);
    CHECK(ids.size() == 5000 * sizeof(std::int32_t));
    CHECK_THROWS_AS(lease.read_tokens(4999, 2), ProtocolFault);
    lease.take_losses(0, loss_bytes(4096, 1.5F));
    CHECK(lease.position() == 4096);
    CHECK_THROWS_AS(lease.take_losses(0, loss_bytes(1, 1)), ProtocolFault);       // again
    CHECK_THROWS_AS(lease.take_losses(4097, loss_bytes(1, 1)), ProtocolFault);    // a gap
    CHECK_THROWS_AS(lease.take_losses(4096, loss_bytes(904, 1)), ProtocolFault);  // the last token has no target
    CHECK_THROWS_AS(lease.take_losses(4096, "abc"), ProtocolFault);
    CHECK_THROWS_AS(lease.complete(), ProtocolFault);  // not all are there
    lease.take_losses(4096, loss_bytes(903, 0.5F));
    CHECK(lease.complete());
    CHECK_FALSE(lease.complete());
    fixture.service->job_moved();
    const idl::Job over = fixture.wait_over(job.id);
    CHECK(over.state == idl::JobState::COMPLETED);
    const auto output = fixture.service->folders().output_path(job.id);
    const auto rows = read_jsonl(output / "results.jsonl");
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].at("nll_sum") == 4096 * 1.5 + 903 * 0.5);
    CHECK(rows[0].at("ranks") == 2);
    CHECK(read_nll(output / "nll/a.npy").size() == 4999);
    CHECK_FALSE(std::filesystem::exists(output / "work"));
    CHECK(fixture.service->loss_curve(job.id, "a", 2).size() == 2);
}

TEST_CASE("lease: a loss that is not finite fails the document, naming the token") {
    ServiceFixture fixture;
    (void)fixture.submit(ServiceFixture::spec_of({{"a", text_of(100, 1)}}));
    LeasedDocument lease = fixture.lease();
    lease.take_losses(0, loss_bytes(10, 1));
    CHECK_THROWS_WITH(lease.take_losses(10, loss_bytes(2, std::numeric_limits<float>::quiet_NaN())),
                      Catch::Contains("the loss of token 11 is nan"));
}

TEST_CASE("lease: a save point survives, and what came after it does not") {
    ServiceFixture fixture;
    const idl::Job job = fixture.submit(ServiceFixture::spec_of({{"a", text_of(20000, 1)}}));
    const std::string state(3000, 's');
    {
        LeasedDocument lease = fixture.lease();
        lease.take_losses(0, loss_bytes(4096, 2));
        CHECK_THROWS_AS(lease.save(point_at(4096, state)), ProtocolFault);  // its state has not come
        lease.take_state(4096, 0, state.substr(0, 2000));
        CHECK_THROWS_AS(lease.take_state(4096, 2500, "x"), ProtocolFault);
        CHECK_THROWS_AS(lease.save(point_at(4096, state)), ProtocolFault);  // not whole
        lease.take_state(4096, 2000, state.substr(2000));
        idl::SavePoint damaged = point_at(4096, state);
        damaged.stateHash = hash_of("else");
        CHECK_THROWS_WITH(lease.save(damaged), Catch::Contains("damaged on its way"));
        lease.take_state(4096, 0, state);
        CHECK(lease.save(point_at(4096, state)));
        CHECK_THROWS_AS(lease.save(point_at(4096, state)), ProtocolFault);  // no progress
        lease.take_losses(4096, loss_bytes(4096, 3));
        const auto release = lease.give_up("its gang was lost", true);
        REQUIRE(release);
        CHECK(release->work.computed_tokens == 4096);
        CHECK_FALSE(lease.give_up("again", true));
        lease.take_losses(8192, loss_bytes(10, 1));  // late: nothing happens
        CHECK(fixture.service->store().release(release->key, release->reason, true, release->row_if_failed,
                                               release->work) == ReleaseOutcome::kRequeued);
    }
    LeasedDocument lease = fixture.lease(8192);
    CHECK(lease.lease().first == 4096);
    CHECK(lease.lease().limit == 4096 + 8192);
    CHECK(lease.read_state(0, 1 << 20) == state);
    CHECK(lease.read_state(2999, 10) == "s");
    CHECK_THROWS_AS(lease.read_state(3000, 1), ProtocolFault);
    lease.take_losses(4096, loss_bytes(8192, 1));
    CHECK_THROWS_AS(lease.take_losses(12288, loss_bytes(1, 1)), ProtocolFault);  // past the stretch
    CHECK(fixture.service->store().job(job.id).usage.computedTokens == 8192);
    CHECK(fixture.service->describe_state({}, job.id, "a").position == 4096);
}

TEST_CASE("lease: an input that was changed after the submit is no longer that document") {
    ServiceFixture fixture;
    write_file(fixture.folder / "root/a.txt", text_of(100, 1));
    idl::JobSpec spec = ServiceFixture::spec_of({{"x", "y"}});
    spec.documents[0] = {};
    spec.documents[0].source.__set_path((fixture.folder / "root/a.txt").string());
    const idl::Job job = fixture.submit(spec);
    CHECK(job.state == idl::JobState::IN_PROGRESS);
    write_file(fixture.folder / "root/a.txt", text_of(100, 2));
    try {
        (void)fixture.lease();
        FAIL("it was leased");
    } catch (const DocumentFailure& failure) {
        CHECK(failure.code_name() == "CORRUPT_DATA");
        CHECK_THAT(failure.what(), Catch::Contains("changed after the job was submitted"));
    }
}

TEST_CASE("service: bad documents have their rows at once, and paths outside the roots are refused") {
    ServiceFixture fixture;
    write_file(fixture.folder / "secret.txt", "secret");
    write_file(fixture.folder / "root/rows.jsonl",
               "{\"custom_id\":\"up\",\"path\":\"../secret.txt\"}\n{\"custom_id\":\"gone\",\"path\":\"../no.txt\"}\n"
               "{\"custom_id\":\"bad\",\"tokens\":[1,999]}\n");
    idl::JobSpec spec = ServiceFixture::spec_of({{"x", "y"}});
    spec.documents[0] = {};
    spec.documents[0].source.__set_path((fixture.folder / "root/rows.jsonl").string());
    const idl::Job job = fixture.wait_over(fixture.submit(spec).id);
    CHECK(job.state == idl::JobState::COMPLETED);
    CHECK(job.requestCounts.failed == 3);
    const auto rows = read_jsonl(fixture.service->folders().output_path(job.id) / "errors.jsonl");
    // What is there and what is not look alike from outside the roots.
    CHECK_THAT(rows.at(0).at("message").get<std::string>(),
               Catch::Contains("not under one of the coordinator's roots"));
    CHECK_THAT(rows.at(1).at("message").get<std::string>(),
               Catch::Contains("not under one of the coordinator's roots"));
    CHECK(rows.at(2).at("code") == "CORRUPT_DATA");

    spec.documents[0].source.__set_path((fixture.folder / "secret.txt").string());
    CHECK(fault_of([&] { (void)fixture.service->submit({}, spec, ""); }) == ServiceCode::PERMISSION_DENIED);
    std::filesystem::create_symlink(fixture.folder / "secret.txt", fixture.folder / "root/link.txt");
    spec.documents[0].source.__set_path((fixture.folder / "root/link.txt").string());
    CHECK(fault_of([&] { (void)fixture.service->submit({}, spec, ""); }) == ServiceCode::PERMISSION_DENIED);
    spec.documents[0].source.__set_path((fixture.folder / "root/kind.xyz").string());
    write_file(fixture.folder / "root/kind.xyz", "x");
    const idl::Job unknown = fixture.wait_over(fixture.submit(spec).id);
    CHECK(unknown.state == idl::JobState::FAILED);
    CHECK(unknown.errorCode == ServiceCode::INVALID_ARGUMENT);
}

TEST_CASE("service: cancelling and draining") {
    ServiceFixture fixture;
    const idl::JobSpec spec = ServiceFixture::spec_of({{"a", text_of(50, 1)}, {"b", text_of(50, 2)}});
    const idl::Job job = fixture.submit(spec);
    LeasedDocument lease = fixture.lease();
    lease.take_losses(0, loss_bytes(49, 1));
    CHECK(lease.complete());
    (void)fixture.service->cancel({}, job.id);
    const idl::Job over = fixture.wait_over(job.id);
    CHECK(over.state == idl::JobState::CANCELLED);
    const auto output = fixture.service->folders().output_path(job.id);
    CHECK(read_jsonl(output / "results.jsonl").size() == 1);  // what was done is not lost
    CHECK(read_jsonl(output / "errors.jsonl").at(0).at("code") == "CANCELLED");
    const std::string kept = fixture.service->submit({}, spec, "key").id;
    fixture.service->drain();
    CHECK(fault_of([&] { (void)fixture.service->submit({}, spec, ""); }) == ServiceCode::OVERLOADED);
    CHECK(fixture.service->submit({}, spec, "key").id == kept);  // it was taken before
    CHECK_FALSE(fixture.service->health().ready);
}
