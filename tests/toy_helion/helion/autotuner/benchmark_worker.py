"""A process that measures."""


class BenchmarkWorker:
    def run(self, job, timeout):
        return job()
