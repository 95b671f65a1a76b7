// Wrong token, path outside the roots, version skew, oversized or damaged uploads, submissions while draining: each its
// error code, and nothing lost.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "support.h"

namespace fenwick::testing {
namespace {

using idl::ErrorCode;

std::int64_t crc_of(const std::string& data) {
    return static_cast<std::int64_t>(crc32_z(0, reinterpret_cast<const unsigned char*>(data.data()), data.size()));
}

idl::JobSpec path_job(const std::string& path) {
    idl::JobSpec spec = text_job("");
    spec.documents[0] = {};
    spec.documents[0].source.__set_path(path);
    return spec;
}

TEST_CASE("api: without its token no client gets anything") {
    LocalCoordinator coordinator([](ServeConfig& config) {
        config.tokens = {{"alice", "alices-token", false}, {"bob", "bobs-token", false}, {"root", "roots-token", true}};
    });
    ApiClient nobody(coordinator.api_port());
    idl::Health health;
    idl::ServerInfo info;
    idl::Job job;
    CHECK(refusal_of([&] { nobody->getHealth(health); }).code == ErrorCode::UNAUTHENTICATED);
    CHECK(refusal_of([&] { nobody->getServerInfo(info, 1); }).code == ErrorCode::UNAUTHENTICATED);
    CHECK(refusal_of([&] { nobody->submitJob(job, text_job("x"), ""); }).code == ErrorCode::UNAUTHENTICATED);
    CHECK(refusal_of([&] { nobody->authenticate("alices-toke"); }).code == ErrorCode::UNAUTHENTICATED);
    CHECK(refusal_of([&] { nobody->authenticate(""); }).code == ErrorCode::UNAUTHENTICATED);

    ApiClient alice(coordinator.api_port(), "alices-token");
    alice->submitJob(job, text_job("x"), "key");
    CHECK(job.client == "alice");
    // Once refused, a connection is nobody's again.
    CHECK(refusal_of([&] { alice->authenticate("wrong"); }).code == ErrorCode::UNAUTHENTICATED);
    idl::Job found;
    CHECK(refusal_of([&] { alice->getJob(found, job.id); }).code == ErrorCode::UNAUTHENTICATED);

    // Others do not learn that the job exists; the administrator sees it.
    ApiClient bob(coordinator.api_port(), "bobs-token");
    CHECK(refusal_of([&] { bob->getJob(found, job.id); }).code == ErrorCode::NOT_FOUND);
    CHECK(refusal_of([&] { bob->cancelJob(found, job.id); }).code == ErrorCode::NOT_FOUND);
    idl::GangInfo gang;
    CHECK(refusal_of([&] { bob->drainWorker(gang, "any"); }).code == ErrorCode::PERMISSION_DENIED);
    idl::JobPage page;
    bob->listJobs(page, "", 10, {});
    CHECK(page.jobs.empty());
    ApiClient root(coordinator.api_port(), "roots-token");
    root->getJob(found, job.id);
    CHECK(found.id == job.id);
    CHECK(refusal_of([&] { root->drainWorker(gang, "no such gang"); }).code == ErrorCode::NOT_FOUND);
}

TEST_CASE("api: documents and models are read under the roots alone") {
    LocalCoordinator coordinator;
    write_file(coordinator.folder() / "secret.txt", "not for clients");
    write_file(coordinator.roots() / "book.txt", "for clients");
    std::filesystem::create_symlink(coordinator.folder() / "secret.txt", coordinator.roots() / "link.txt");
    ApiClient client(coordinator.api_port());
    idl::Job job;
    const auto code = [&](const idl::JobSpec& spec) {
        return refusal_of([&] { client->submitJob(job, spec, ""); }).code;
    };
    CHECK(code(path_job((coordinator.folder() / "secret.txt").string())) == ErrorCode::PERMISSION_DENIED);
    CHECK(code(path_job((coordinator.roots() / ".." / "secret.txt").string())) == ErrorCode::PERMISSION_DENIED);
    CHECK(code(path_job((coordinator.roots() / "link.txt").string())) == ErrorCode::PERMISSION_DENIED);
    CHECK(code(path_job("roots/book.txt")) == ErrorCode::INVALID_ARGUMENT);
    idl::JobSpec model = path_job((coordinator.roots() / "book.txt").string());
    model.model = {};
    model.model.__set_path(small_model(coordinator.folder(), "gated_deltanet").string());  // not configured
    CHECK(code(model) == ErrorCode::PERMISSION_DENIED);
    model.model = {};
    model.model.__set_name("large");
    CHECK(code(model) == ErrorCode::NOT_FOUND);
    client->submitJob(job, path_job((coordinator.roots() / "book.txt").string()), "");
    CHECK(job.requestCounts.failed == 0);
    idl::ResultChunk chunk;
    for (const char* file : {"../../store.db", "job.json", "nll/../job.json", "/etc/passwd", "work/lock"}) {
        CHECK(refusal_of([&] { client->readResult(chunk, job.id, file, 0, 100); }).code == ErrorCode::NOT_FOUND);
    }
}

TEST_CASE("api: another protocol version is told so") {
    LocalCoordinator coordinator;
    ApiClient client(coordinator.api_port());
    idl::ServerInfo info;
    CHECK(refusal_of([&] { client->getServerInfo(info, 99); }).code == ErrorCode::VERSION_MISMATCH);
    client->getServerInfo(info, 1);
    CHECK(info.protocolVersion == 1);
    REQUIRE(info.models.size() == 1);
    CHECK(info.models[0].name == "small");
}

TEST_CASE("api: uploads: size, order, checksum, quota") {
    LocalCoordinator coordinator([](ServeConfig& config) { config.limits.upload_bytes = 6 << 20; });
    ApiClient client(coordinator.api_port());
    idl::Upload upload;
    CHECK(refusal_of([&] { client->beginUpload(upload, "../name.txt", 3); }).code == ErrorCode::INVALID_ARGUMENT);
    CHECK(refusal_of([&] { client->beginUpload(upload, "name.txt", -1); }).code == ErrorCode::INVALID_ARGUMENT);
    CHECK(refusal_of([&] { client->beginUpload(upload, "large.txt", (6 << 20) + 1); }).code ==
          ErrorCode::QUOTA_EXCEEDED);

    const std::string data(5 << 20, 'x');
    client->beginUpload(upload, "book.txt", std::ssize(data));
    const std::string id = upload.id;
    const auto put = [&](std::int64_t offset, const std::string& piece, std::int64_t crc) {
        return [&, offset, piece, crc] { client->putChunk(upload, id, offset, piece, crc); };
    };
    const std::string oversized = data.substr(0, (4 << 20) + 1);
    CHECK(refusal_of(put(0, oversized, crc_of(oversized))).code == ErrorCode::INVALID_ARGUMENT);
    const std::string first = data.substr(0, 4 << 20);
    const std::string rest = data.substr(4 << 20);
    const idl::ServiceError damaged = refusal_of(put(0, first, crc_of(first) + 1));
    CHECK(damaged.code == ErrorCode::CORRUPT_DATA);
    CHECK(damaged.retryable);
    CHECK(refusal_of(put(std::ssize(first), rest, crc_of(rest))).code == ErrorCode::CONFLICT);  // a gap before it
    put(0, first, crc_of(first))();
    CHECK(refusal_of([&] { client->commitUpload(upload, id); }).code == ErrorCode::CONFLICT);
    put(0, first, crc_of(first))();  // again: an answer may have been lost
    put(std::ssize(first), rest, crc_of(rest))();
    CHECK(refusal_of(put(std::ssize(first), rest + "x", crc_of(rest + "x"))).code == ErrorCode::INVALID_ARGUMENT);
    client->commitUpload(upload, id);
    client->commitUpload(upload, id);
    CHECK(upload.committed);
    CHECK(refusal_of([&] { client->commitUpload(upload, "no such upload"); }).code == ErrorCode::NOT_FOUND);

    idl::JobSpec spec = text_job("");
    spec.documents[0] = {};
    spec.documents[0].source.__set_uploadId(id);
    idl::Job job;
    client->submitJob(job, spec, "");
    idl::DocumentPage page;
    for (std::int64_t version = 0; job.requestCounts.total == 0 || job.tokens == 0; version = job.version) {
        client->waitJob(job, job.id, version, 10'000);
    }
    client->listDocuments(page, job.id, "", 10, {});
    REQUIRE(page.documents.size() == 1);
    CHECK(page.documents[0].tokens == std::ssize(data));
    CHECK(page.documents[0].customId == "book");
}

TEST_CASE("api: while it drains, nothing new is taken and nothing old is forgotten") {
    LocalCoordinator coordinator;
    ApiClient client(coordinator.api_port());
    idl::Job before;
    client->submitJob(before, text_job("before"), "key");
    CHECK(http_get(coordinator.http_port(), "/readyz").status == 200);
    coordinator.service().drain();
    idl::Job job;
    idl::Upload upload;
    for (const idl::ServiceError& refusal :
         {refusal_of([&] { client->submitJob(job, text_job("after"), "other key"); }),
          refusal_of([&] { client->beginUpload(upload, "a.txt", 1); })}) {
        CHECK(refusal.code == ErrorCode::OVERLOADED);
        CHECK(refusal.retryable);
        CHECK(refusal.retryAfterMs > 0);
    }
    client->submitJob(job, text_job("before"), "key");  // the answer of the first may have been lost
    CHECK(job.id == before.id);
    CHECK(http_get(coordinator.http_port(), "/readyz").status == 503);
    CHECK(http_get(coordinator.http_port(), "/livez").status == 200);
    coordinator.restart();
    ApiClient again(coordinator.api_port());
    again->getJob(job, before.id);
    CHECK(job.id == before.id);
}

TEST_CASE("api: a key is one job, whatever is lost on the way, and with another spec a conflict") {
    LocalCoordinator coordinator([](ServeConfig& config) { config.limits.active_jobs = 2; });
    ApiClient client(coordinator.api_port());
    idl::Job first;
    idl::Job again;
    client->submitJob(first, text_job("text"), "key");
    coordinator.restart();
    ApiClient later(coordinator.api_port());
    later->submitJob(again, text_job("text"), "key");
    CHECK(again.id == first.id);
    CHECK(refusal_of([&] { later->submitJob(again, text_job("other text"), "key"); }).code == ErrorCode::CONFLICT);
    later->submitJob(again, text_job("text"), "");
    CHECK(again.id != first.id);
    const idl::ServiceError refusal = refusal_of([&] { later->submitJob(again, text_job("text"), "key 3"); });
    CHECK(refusal.code == ErrorCode::QUOTA_EXCEEDED);
    CHECK(refusal.retryable);
}

TEST_CASE("api: waiting calls wake when the job changes") {
    LocalCoordinator coordinator;
    ApiClient client(coordinator.api_port());
    idl::Job job;
    client->submitJob(job, text_job("text"), "");
    while (job.state == idl::JobState::VALIDATING) client->waitJob(job, job.id, job.version, 10'000);
    CHECK(job.state == idl::JobState::IN_PROGRESS);
    idl::Job changed;
    std::thread waiting([&] {
        ApiClient other(coordinator.api_port());
        other->waitJob(changed, job.id, job.version, 20'000);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto called = std::chrono::steady_clock::now();
    idl::Job cancelled;
    client->cancelJob(cancelled, job.id);
    waiting.join();
    CHECK(std::chrono::steady_clock::now() - called < std::chrono::seconds(2));
    CHECK(changed.version > job.version);
    CHECK(refusal_of([&] { client->waitJob(changed, job.id, 0, -1); }).code == ErrorCode::INVALID_ARGUMENT);
    idl::JobPage page;
    CHECK(refusal_of([&] { client->listJobs(page, "", 10, {static_cast<idl::JobState::type>(9)}); }).code ==
          ErrorCode::INVALID_ARGUMENT);
    CHECK(refusal_of([&] { client->waitJob(changed, "no such job", 0, 1000); }).code == ErrorCode::NOT_FOUND);
}

}  // namespace
}  // namespace fenwick::testing
