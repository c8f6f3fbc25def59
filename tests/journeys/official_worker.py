"""The official worker, unchanged: `official_worker.py URL ENVIRONMENT_ID DIRECTORY`, with its key in the environment."""

import asyncio
import logging
import os
import sys

import anthropic


async def main(url: str, environment_id: str, workdir: str) -> None:
    logging.basicConfig(level=logging.INFO)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused") as client:
        await client.beta.environments.work.worker(
            environment_id=environment_id,
            environment_key=os.environ["ANTHROPIC_ENVIRONMENT_KEY"],
            workdir=workdir,
            max_idle=1,
        ).run()


asyncio.run(main(*sys.argv[1:]))
